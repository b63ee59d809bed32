#!/bin/bash
# A real SLURM with one node on 127.0.0.1, without systemd, for tests. It needs root; slurmctld, slurmd and munged must be there.
#   slurm.sh start DIR   write DIR/slurm.conf and start munged, slurmctld and slurmd; then SLURM_CONF=DIR/slurm.conf
#   slurm.sh stop  DIR   end the jobs and what start started (by the pid files in DIR)
# By environment, at start: SLURM_CTLD_PORT, SLURM_D_PORT.
set -u
cmd=${1:-}; dir=${2:-}
case $cmd in start|stop) ;; *) cmd= ;; esac
[ -n "$cmd" ] && [ -n "$dir" ] || { echo "usage: $0 start|stop DIR" >&2; exit 2; }
mkdir -p "$dir" || exit 1
dir=$(cd "$dir" && pwd -P)
export SLURM_CONF=$dir/slurm.conf
host=$(hostname -s)
freezer=/sys/fs/cgroup/freezer

# up PID NAME: PID is a live process (no zombie: pid 1 of a container may not reap) of that name
up() {
  local stat
  [ -n "$1" ] && stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  case $stat in *") Z "*|*") X "*) return 1;; *"($2"*) return 0;; *) return 1;; esac
}
alive() { up "$(cat "$dir/$1.pid" 2>/dev/null)" "$1"; }
# end NAME: TERM, wait up to 10 s, then KILL
end() {
  local pid
  if alive "$1"; then
    pid=$(cat "$dir/$1.pid"); kill "$pid"
    for _ in $(seq 100); do up "$pid" "$1" || break; sleep 0.1; done
    if up "$pid" "$1"; then kill -9 "$pid"; fi
  fi
  rm -f "$dir/$1.pid"
}

configure() {
  mkdir -p "$dir/state" "$dir/spool" "$dir/munge" && chmod 0755 "$dir/munge" || return 1
  (umask 077; dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none)
  # cred_expire, at least 5, is also how long a requeued job is held back (120 s unless told).
  # The v1 freezer, where it is writable, ends every process of a job, even one with a session of its own; pgid does not.
  cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=${SLURM_CTLD_PORT:-16817}
SlurmdPort=${SLURM_D_PORT:-16818}
CommunicationParameters=NoAddrCache,NoCtldInAddrAny,NoInAddrAny
MailProg=/bin/true
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/$([ -w $freezer/cgroup.procs ] && echo cgroup || echo pgid)
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=1
InactiveLimit=0
Waittime=0
ReturnToService=2
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=$(awk '/MemTotal/{print int($2/1024)}' /proc/meminfo) State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
  printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no Constrain{Cores,RAMSpace,SwapSpace,Devices}=no >"$dir/cgroup.conf"
}

start() {
  local program deadline
  for program in munged slurmctld slurmd sbatch; do
    command -v $program >/dev/null || { echo "$program is not installed" >&2; return 1; }
  done
  configure || return 1
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" || { tail -n 5 "$dir/munged.log" >&2; return 1; }
  slurmctld -i || { tail -n 5 "$dir/slurmctld.log" >&2; return 1; }
  slurmd || { tail -n 5 "$dir/slurmd.log" >&2; return 1; }
  deadline=$((SECONDS + 30))
  while [ $SECONDS -lt $deadline ]; do
    case $(timeout 5 sinfo -h -o %t 2>/dev/null) in idle) return 0 ;; esac
    sleep 0.2
  done
  echo "the node did not come up" >&2
  tail -n 5 "$dir/slurmctld.log" "$dir/slurmd.log" >&2
  return 1
}

stop() {
  if alive slurmctld && alive slurmd; then # else a job's slurmstepd would outlive slurmd
    timeout 10 scancel --quiet --user=root >/dev/null 2>&1
    for _ in $(seq 50); do
      [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
      timeout 10 scancel --full --signal=KILL --quiet --user=root >/dev/null 2>&1; sleep 0.2
    done
  fi
  end slurmd; end slurmctld; end munged
  rmdir "$freezer/slurm_$host" 2>/dev/null || true
}

$cmd
