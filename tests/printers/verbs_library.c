/* The functions of libibverbs that ibv_devinfo calls, above the files of /sys/class/infiniband.
 *
 * The kernel shows the MTU of a port in no file: it is in /tmp/mtus, a line with name and number for each card.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef ibv_query_port

#define FOLDER "/sys/class/infiniband"

static const char *text_of(const struct ibv_device *device, const char *name)
{
	static char line[256];
	char path[512];
	snprintf(path, sizeof path, FOLDER "/%s/%s", device->name, name);
	FILE *file = fopen(path, "r");
	line[0] = 0;
	if (file) {
		if (fgets(line, sizeof line, file))
			line[strcspn(line, "\n")] = 0;
		fclose(file);
	}
	return line;
}

static unsigned long number_of(const struct ibv_device *device, const char *name)
{
	return strtoul(text_of(device, name), NULL, 0);
}

/* Groups of four hexadecimal digits, in the byte order of the network. */
static void guid_of(const char *text, void *guid, int groups)
{
	uint16_t *words = guid;
	for (int i = 0; i < groups; i++)
		words[i] = htons(strtoul(text + 5 * i, NULL, 16));
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strverscmp((*one)->d_name, (*other)->d_name);
}

static int is_card(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct dirent **entries;
	int scanned = scandir(FOLDER, &entries, is_card, by_name), found = scanned < 0 ? 0 : scanned;
	if (count)
		*count = found;
	struct ibv_device **devices = calloc(found + 1, sizeof *devices);
	for (int i = 0; i < found; i++) {
		struct ibv_device *device = calloc(1, sizeof *device);
		device->node_type = IBV_NODE_CA;
		device->transport_type = IBV_TRANSPORT_IB;
		snprintf(device->name, sizeof device->name, "%.63s", entries[i]->d_name);
		snprintf(device->ibdev_path, sizeof device->ibdev_path, FOLDER "/%s", device->name);
		devices[i] = device;
	}
	return devices;
}

void ibv_free_device_list(struct ibv_device **devices) { (void)devices; }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = calloc(1, sizeof *context);
	context->device = device;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	snprintf(attr->fw_ver, sizeof attr->fw_ver, "%s", text_of(context->device, "fw_ver"));
	guid_of(text_of(context->device, "node_guid"), &attr->node_guid, 4);
	guid_of(text_of(context->device, "sys_image_guid"), &attr->sys_image_guid, 4);
	attr->vendor_id = 0x02c9;
	attr->vendor_part_id = atoi(text_of(context->device, "hca_type") + 2);
	attr->hw_ver = number_of(context->device, "hw_rev");
	attr->phys_port_cnt = 1;
	return 0;
}

static int mtu_of(const char *card)
{
	char name[64];
	int bytes, mtu = 0;
	FILE *file = fopen("/tmp/mtus", "r");
	while (file && fscanf(file, "%63s %d", name, &bytes) == 2)
		if (!strcmp(name, card))
			for (mtu = IBV_MTU_256; 128 << mtu < bytes; mtu++)
				;
	if (file)
		fclose(file);
	return mtu;
}

int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;
	const struct ibv_device *card = context->device;
	(void)number;
	attr->state = number_of(card, "ports/1/state");
	attr->phys_state = number_of(card, "ports/1/phys_state");
	attr->max_mtu = IBV_MTU_4096;
	attr->active_mtu = mtu_of(card->name);
	attr->lid = number_of(card, "ports/1/lid");
	attr->sm_lid = number_of(card, "ports/1/sm_lid");
	attr->lmc = number_of(card, "ports/1/lid_mask_count");
	attr->link_layer =
		strcmp(text_of(card, "ports/1/link_layer"), "Ethernet") ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid)
{
	char name[64];
	snprintf(name, sizeof name, "ports/%d/gids/%d", number, index);
	guid_of(text_of(context->device, name), gid->raw, 8);
	return 0;
}
