# What sshd runs for whoever comes with a certificate of this launch: an MPI daemon, and nothing else. OpenMPI asks with
# a line of shell that may set PATH, LD_LIBRARY_PATH and the like first, and quotes what the daemon is told:
#   PRTE_PREFIX=/usr;export PRTE_PREFIX;/usr/bin/prted --prtemca prte_hnp_uri "prterun-a-1@0.0;tcp://10.0.0.1:1:24"
# To users whose shell is sh it says `( test ! -r ./.profile || . ./.profile; … )` around that.
asked=$SSH_ORIGINAL_COMMAND
bare=$(printf '%s\n' "$asked" | sed 's/"[^"$`\\]*"//g; s/^( test ! -r .\/.profile || . .\/.profile;\(.*\))$/\1/')
path='[A-Za-z0-9_./:+@~-]*'
sets=" *[A-Z_]*(PATH|PREFIX)=$path(\\\$[A-Z_]+|\\\$\\{[A-Z_]+:-\\})? *; *export [A-Z_]+ *;"
if [ "$(printf '%s\n' "$asked" | wc -l)" -ne 1 ] ||
  ! printf '%s\n' "$bare" | LC_ALL=C grep -Eqx "($sets)* *($path/)?(orted|prted)( [A-Za-z0-9_./:,=+@%^~ -]*)?"; then
  echo "gpuprov: refused: this key starts MPI daemons only" >&2
  exit 126
fi
folder=${0%/*}
export GPUPROV_LAUNCH="${folder##*/}"
exec /bin/sh -c "$asked"
