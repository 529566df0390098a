# Ends what carries the launch's mark; with "close KEYS UID GID" also removes its line from that file of keys, with the
# rights of this user, whose folder it is in and whose links may lead anywhere, and all else that is left of it.
# systemd's timer runs it as well, if the controller no longer does.
name=${0##*/}
launch=${name%.close}
folder=${0%.close}
pattern=$(printf '%s' "$launch" | sed 's/[.]/[.]/g')
for signal in TERM KILL KILL; do
  left=
  # One grep for all: two programs for each of a node's thousands of processes would take a minute.
  for file in $(grep -lzsxF "GPUPROV_LAUNCH=$launch" /proc/[0-9]*/environ); do
    process=${file#/proc/}
    process=${process%/environ}
    if [ "$process" != $$ ] && kill -$signal "$process" 2>/dev/null; then left=1; fi
  done
  [ -n "$left" ] || break
  sleep 1
done
[ "$1" = close ] || exit 0
failed=
user=
if [ "$3" != "$(id -u)" ]; then user="setpriv --reuid=$3 --regid=$4 --init-groups"; fi
# shellcheck disable=SC2016 # the shell below expands it
$user /bin/sh -c '
  [ -f "$1" ] || exit 0
  unended=
  if [ -e "$2/unended" ] && tail -n 1 "$1" | grep -q " gpuprov-launch-$3\$"; then unended=1; fi
  sed -i --follow-symlinks "/ gpuprov-launch-$3\$/d" "$1" || exit 1
  if [ -n "$unended" ]; then truncate -s -1 "$1"; fi
  if [ -e "$2/created" ] && [ ! -s "$1" ]; then rm -f "$1"; fi
' sh "$2" "$folder" "$pattern" || failed=1
rm -rf "$folder"
[ -z "$failed" ] || exit 1 # the timer tries again
rm -f "$0"
rmdir "${0%/*}" 2>/dev/null
exit 0
