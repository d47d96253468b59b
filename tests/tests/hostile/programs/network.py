import subprocess

SO_BINDTODEVICE, SO_MARK, IP_TRANSPARENT = 25, 36, 19
NEWUSER, NEWNET = 0x10000000, 0x40000000


def greeted(address, port, device=False):
    """By the routes, or past them: any program may bind its socket to the device."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def tried():
        with socket.socket(family, socket.SOCK_STREAM) as it:
            it.settimeout(3)
            if device:
                it.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"eth0\0")
            it.connect((address, port))
            return it.recv(5).decode()

    return tried


def echoed(address, port):
    def tried():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
            it.settimeout(3)
            it.sendto(b"sent", (address, port))
            return it.recv(4).decode()

    return tried


def dialled(path):
    def tried():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as it:
            it.connect(path)

    return tried


def option(level, name):
    def tried():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as it:
            it.setsockopt(level, name, 1)

    return tried


def program(command):
    def tried():
        ran = subprocess.run(command.split(), capture_output=True, text=True, timeout=10)
        if ran.returncode == 0:
            return "ok"
        known = {"Operation not permitted": "EPERM", "No such file": "ENOENT"}
        said = [name for text, name in known.items() if text in ran.stderr]
        return said[0] if said else ran.stderr[-200:]

    return tried


def opened(*kind):
    return lambda: socket.socket(*kind).close()


def written(path):
    def tried():
        with open(path, "w") as it:
            it.write("1")

    return tried


# First whatever could lift the filter, or go round it: what is tried after it shows whether it did.
for command in [
    "nft flush ruleset",
    "nft delete table inet overwinter",
    "nft add element inet overwinter allowed4 { 10.0.0.0/8, 169.254.0.0/16 }",
    "nft add table inet mine",
    "ip link set eth0 down",
    "ip link set lo down",
    "ip link add mine type dummy",
    "ip link add mine type veth peer name theirs netns 1",
    "ip addr add 10.9.9.9/24 dev eth0",
    "ip route add 10.0.0.0/8 dev eth0",
    "ip rule add from all table 9",
    "ip netns add mine",
]:
    attempt("program " + command, program(command))
attempt("raw packet", opened(socket.AF_PACKET, socket.SOCK_RAW, 0x300))
attempt("raw icmp", opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw tcp", opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
attempt("raw icmp6", opened(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
attempt("raw echo", opened(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
attempt("option mark", option(socket.SOL_SOCKET, SO_MARK))
attempt("option transparent", option(socket.IPPROTO_IP, IP_TRANSPARENT))
attempt("unshare", in_child(lambda: call(272, NEWNET)))
attempt("unshare user", in_child(lambda: call(272, NEWUSER | NEWNET)))
own = os.open("/proc/self/ns/net", os.O_RDONLY)
attempt("setns", in_child(lambda: call(308, own, NEWNET)))
attempt("tun", lambda: os.open("/dev/net/tun", os.O_RDWR) and "ok")
for name in ["ipv4/ip_forward", "ipv4/conf/all/route_localnet", "ipv4/ping_group_range"]:
    attempt("sysctl " + name, written("/proc/sys/net/" + name))

# That there is a way out at all.
public, served = knows["public"]
attempt("public", greeted(public, served))
attempt("public by device", greeted(public, served, True))
attempt("public by datagram", echoed(public, served))

# What this host reaches, and is; and the other sandbox, which has the same addresses.
for address in knows["beyond"]:
    attempt("closed " + address, greeted(address, served))
    attempt("closed device " + address, greeted(address, served, True))
    attempt("closed datagram " + address, echoed(address, served))
for address in knows["own"]:
    for port in knows["ports"]:
        attempt("closed %s %d" % (address, port), greeted(address, port))
        attempt("closed device %s %d" % (address, port), greeted(address, port, True))
for path in knows["sockets"]:
    attempt("socket " + path.replace("\0", "@"), dialled(path))
tell()
