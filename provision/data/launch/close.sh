# Ends what carries the launch's mark; with "close KEYS" also removes its line from that file of keys, and all
# else that is left of it. systemd's timer runs it, too, when nobody is there any more to ask for it.
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
if [ -f "$2" ]; then
  unended=
  if [ -e "$folder/unended" ] && tail -n 1 "$2" | grep -q " gpuprov-launch-$pattern\$"; then unended=1; fi
  sed -i --follow-symlinks "/ gpuprov-launch-$pattern\$/d" "$2" || failed=1
  if [ -n "$unended" ] && [ -z "$failed" ]; then truncate -s -1 "$2"; fi
  if [ -e "$folder/created" ] && [ ! -s "$2" ]; then rm -f "$2"; fi
fi
rm -rf "$folder"
[ -z "$failed" ] || exit 1 # the timer tries again
rm -f "$0"
rmdir "${0%/*}" 2>/dev/null
exit 0
