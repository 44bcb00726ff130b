"""The answers of Slurm's programs at three kinds of site, in the formats of Slurm 21.08 to 24.05."""

from __future__ import annotations

from ddpgen.tiers.slurm.survey import Answers

_REST = (
    "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe={share} OverTimeLimit=NONE PreemptMode=OFF "
    "State=UP TotalCPUs=0 TotalNodes=0 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED "
    "MaxMemPerNode=UNLIMITED TRES=cpu=64,mem=1024000M,node=2,billing=64,gres/gpu=8"
)


def _partition(name: str, time: str, default: str = "NO", share: str = "NO", **changed: str) -> str:
    """A line of `scontrol --oneliner show partition`."""
    fields = {
        "AllowGroups": "ALL", "AllowAccounts": "ALL", "AllowQos": "ALL", "AllocNodes": "ALL", "Default": default,
        "QoS": "N/A", "DefaultTime": "01:00:00", "DisableRootJobs": "NO", "ExclusiveUser": "NO", "GraceTime": "0",
        "Hidden": "NO", "MaxNodes": "UNLIMITED", "MaxTime": time, "MinNodes": "0", "LLN": "NO",
        "MaxCPUsPerNode": "UNLIMITED", "Nodes": f"{name}[01-99]",
    }  # fmt: skip
    words = " ".join(f"{key}={value}" for key, value in {**fields, **changed}.items())
    return f"PartitionName={name} {words} {_REST.format(share=share)}\n"


def _config(**values: str) -> str:
    """The answer of `scontrol show config`, as far as it matters, with lines that look alike."""
    lines = [f"{name:<24}= {value}\n" for name, value in values.items()]
    head = (
        "Configuration data as of 2026-11-26T10:00:00\nAccountingStorageTRES  = cpu,mem,gres/gpu\n"
    )
    return head + "".join(lines) + "\nSlurmctld(primary) at ctl is UP\n"


# One partition for all, and no accounting.
LAB = Answers(
    partitions=_partition("main", "UNLIMITED", default="YES"),
    nodes="main|2|64|512000|gpu:4(S:0-1)|(null)\nmain|1|16|64000|(null)|(null)\n",
    config=_config(
        AccountingStorageEnforce="none", ClusterName="lab", JobRequeue="1", JobSubmitPlugins="(null)",
        MaxArraySize="1001", SelectType="select/cons_tres",
    ),
)  # fmt: skip
LAB_REFUSED = (
    "sacctmgr --noheader --parsable2 show assoc (You are not running a supported accounting_storage plugin)",
)

# Partitions for different nodes, GPUs of several types, accounts and QoS. The database has an older cluster, too.
UNIVERSITY = Answers(
    partitions=_partition("cpu", "3-00:00:00", default="YES")
    + _partition("gpu", "1-00:00:00", QoS="gpu-part")
    + _partition("gpu-long", "7-00:00:00", MaxNodes="2", AllowAccounts="ml", AllowQos="long,normal"),
    nodes=(
        "cpu|120|48|190000|(null)|skylake,ib\n"
        "cpu|12|128+|1000000+|(null)|rome,ib,bigmem\n"
        "gpu|6|64|512000|gpu:a100:4(S:0-3),nvme:1|rome,ib,a100\n"
        "gpu|10|40|190000|gpu:v100:2(S:0-1)|skylake,ib,v100\n"
        "gpu|1|64|512000|gpu:a100:2(S:0),gpu:a100_1g.10gb:14(S:1),shard:8|rome,a100\n"
        "gpu-long|4|64|512000|gpu:a100:4(S:0-3)|rome,ib,a100\n"
    ),
    config=_config(
        AccountingStorageEnforce="associations,limits,qos,safe", ClusterName="uni", JobRequeue="1",
        JobSubmitPlugins="(null)", MaxArraySize="10001", SelectType="select/cons_tres",
    ),
    associations="old|attic|old-qos\nuni|physics|normal,short\nuni|ml|long,normal\n",
    qos=(
        "normal|||\nshort|02:00:00||DenyOnLimit\nlong|14-00:00:00|gres/gpu=8,node=2|"
        "DenyOnLimit,PartitionTimeLimit\ngpu-part||cpu=512,gres/gpu=16|\nadmin|1-00:00:00||\n"
    ),
)  # fmt: skip

# Whole nodes, whose GPUs Slurm does not know, a lua plug-in, no requeue by default, short arrays.
CENTRE = Answers(
    partitions=_partition("standard", "06:00:00", default="YES", share="EXCLUSIVE", MaxNodes="256")
    + _partition("large", "12:00:00", share="EXCLUSIVE", MaxNodes="2048")
    + _partition("booster", "06:00:00", share="EXCLUSIVE", MaxNodes="384"),
    nodes=(
        "standard|2100|256|245000|(null)|mem256\nlarge|2100|256|245000|(null)|mem256\n"
        "booster|936|96|515000|(null)|a100,mem512\n"
    ),
    config=_config(
        AccountingStorageEnforce="associations,limits,nojobs,qos", ClusterName="centre", JobRequeue="0",
        JobSubmitPlugins="lua", MaxArraySize="101", SelectType="select/linear",
    ),
    associations="centre|hpc0042|normal\n",
    qos="normal|||\n",
)  # fmt: skip

SITES = {"lab": (LAB, LAB_REFUSED), "university": (UNIVERSITY, ()), "centre": (CENTRE, ())}
