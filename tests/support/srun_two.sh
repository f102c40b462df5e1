# As `srun COMMAND` on two machines with a cable between them. They are namespaces of this machine: each has processes, a
# network and a /tmp/ray of its own; files are shared. To be started as
#   unshare --pid --fork --mount-proc --net --mount --kill-child bash srun_two.sh COMMAND
# 10.77.0.1 is the first. The exit code is the first's. All ends with the first.
set -eu
machine() {
  ip link set lo up
  ip addr add "10.77.0.$1/24" dev "air$1"
  ip link set "air$1" up
  mkdir -p /tmp/ray
  mount -t tmpfs none /tmp/ray
}
if [ "$1" = --second ]; then
  shift
  until ip link show air2 >/dev/null 2>&1; do sleep 0.1; done
  machine 2
  exec "$@"
fi
ip link add air1 type veth peer name air2
unshare --pid --fork --mount-proc --net --mount --kill-child bash "$0" --second "$@" &
until second=$(cat "/proc/$!/task/$!/children") && [ -n "$second" ]; do sleep 0.1; done
sleep 0.5  # until its namespaces are its own
ip link set air2 netns $second
machine 1
"$@"
