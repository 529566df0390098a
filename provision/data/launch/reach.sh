# How mpirun reaches another node: HOST and the words to run there. The keys and ports of the hosts come in the
# environment, public as they are; only those keys are believed.
folder=${0%/*}
known=$folder/known_hosts.$$
printf '%s\n' "$GPUPROV_HOST_KEYS" > "$known"
port=$(printf '%s\n' "$GPUPROV_SSH_PORTS" | while read -r host port; do
  if [ "$host" = "$1" ]; then echo "$port"; fi
done)
ssh -x -T -F /dev/null -i "$folder/key" -o CertificateFile="$folder/key-cert.pub" -o IdentitiesOnly=yes -o BatchMode=yes \
  -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$known" -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no \
  -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=6 -l "$(id -un)" -p "${port:-22}" -- "$@"
status=$?
rm -f "$known"
[ $status -eq 0 ] || echo "gpuprov: ssh to $1 ended with status $status" >&2
exit $status
