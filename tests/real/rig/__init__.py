"""A rig: several "hosts" on this one machine, as close to real machines as namespaces come.

    from tests.real.rig import Host, Rig

    with Rig([Host("desk", nic="enp5s0"), Host("laptop", nic="wlan0")]) as rig:
        subprocess.run(["ssh", "-F", rig.ssh_config, "desk", "true"])      # from anywhere, as root
        rig.control.run(["ssh", "-F", rig.ssh_config, "root@desk", "true"])  # on the network itself
        rig["desk"].run(["hostname"]).stdout                                # no ssh: straight inside
        rig["desk"].power_off(); rig["desk"].boot()
        assert rig.strays(within=3) == []

As a fixture of a test module (tests/real/conftest.py skips, or in CI fails, where no rig can be):

    @pytest.fixture(scope="module")
    def rig(new_rig): return new_rig(Host("desk"), Host("laptop"))

**What is a host.** Own network, host name, mounts, processes, IPC; its disk is an overlay of this
machine's, so nothing of the machine changes, and /root, /home, /tmp, /run, /dev, /etc/hosts are its
own. sshd with own keys; users `root` and `trainer` (password `*`), who know all hosts by name. A decoy
docker0, with the same address on every host. The checkout and the interpreter that runs the tests
are where they are outside, for both users.

    Host(name, nic="eth0", address=None,
         networks={"lan": ("enp5s0", None), "vpn": ("tailscale0", "100.64.0.9")},  # instead of nic
         resolves={"laptop": "127.0.1.1", "desk": None},  # names in its /etc/hosts; None: unknown
         port=22, jump=None, small_disk={"/data": 32}, shared="/shared",
         files={"/etc/x": ("text", 0o644)}, services=[("munged",)])  # run at each boot, as root, in order
    Rig(hosts, subnets={"lan": "192.168.7.0/24"}, control=("lan",))

**A host's handle** `rig["desk"]`: `.name .nic .address .addresses[network] .home .up`;
`.run(argv, user="trainer", timeout=60, stdin=None, env=None, cwd=None, check=False)`,
`.popen(argv, user=, env=, cwd=, **Popen's)`; `.path("x")`: that file of trainer's home (or of the host,
"/etc/x") as seen from here, while the host is up; `.processes()`: what runs there that is not the rig's own;
`.kill_all()` kills the former, `.freeze()` and `.thaw()` stop them.

**Faults**, on a host and, where it has a network, on `rig.control` (the driver's place) too:

    .power_off()  .boot()            silent at once, then dead; the disk is kept, /tmp is not
    .unplug()     .plug()            the cable; unplug("vpn") for one network
    .drop(29500)  .reject(29500)     firewall; drop(1, 99): all of these ports; direction="in" | "out" | "both",
    .clear_firewall()                "in" (default): connections made to this host
    .rate(10)     .rate(None)        Mbit/s, both ways; direction="in" or "out": one of them
    .delay(20)    .delay(0)          ms each way
    .black_hole(1300)                longer packets vanish, without a word; black_hole(None) ends it
    .fill("/data")  .empty("/data")  the file system there is really full (use small_disk)

**The driver** is an ordinary process of this machine. Outside the network, `ssh -F rig.ssh_config`
finds its way in (a ProxyCommand that hands ssh a socket); for ssh's own behaviour on connecting, run
it in the network: `rig.control.run([...])`, `.popen([...])`, or put `rig.control.enter` (words)
before a command line. `rig.control.connect(address, port)` is a socket of that network.

`rig.strays(within=3.0)`: processes on any host, after that much patience, that are not the rig's.

A Slurm cluster on such hosts: slurm.py, which has a manual of its own.

**Life.** Everything of a rig hangs on one process, its keeper, PID 1 of a PID namespace around all
hosts, and the keeper on a pipe from the process that made the rig: when that ends, however it ends,
the rig is gone, mounts and networks with it. Rigs do not see each other: same names, same addresses.

Knows nothing of ddpgen or train.
"""

from tests.real.rig.control import Control
from tests.real.rig.errors import RigError
from tests.real.rig.machine import Machine
from tests.real.rig.processes import Process
from tests.real.rig.rig import Rig
from tests.real.rig.spec import Host
from tests.real.rig.tools import unavailable

__all__ = ["Control", "Host", "Machine", "Process", "Rig", "RigError", "unavailable"]
