def connect(family, address):
    def tried():
        with socket.socket(family, socket.SOCK_STREAM) as it:
            it.settimeout(2)
            it.connect(address)

    return tried


# The host, by every address that it could have; the other sandbox by its own loopback's port.
for address in ["127.0.0.1", "127.0.0.2", "0.0.0.0"] + knows["addresses"]:
    attempt("address " + address, connect(socket.AF_INET, (address, knows["port"])))
for address in ["::1", "::ffff:127.0.0.1", "fe80::1%lo"]:
    attempt("address " + address, connect(socket.AF_INET6, (address, knows["port"])))
attempt("address of the other", connect(socket.AF_INET, ("127.0.0.1", knows["other_port"])))
for name in knows["abstract"]:
    attempt("abstract " + name, connect(socket.AF_UNIX, "\0" + name))
attempt("address by name", lambda: socket.getaddrinfo("localhost.localdomain.invalid", 80) and "resolved")

# Paths of the host, as they are and through everything that leads to another root.
processes = [name for name in os.listdir("/proc") if name.isdigit()]
ways = [""] + ["/proc/%s/root" % pid for pid in processes + ["self", "thread-self"]]
ways += ["/proc/self/fd/%d/../../../.." % fd for fd in range(3)] + ["/.." * 30, "/proc/1/cwd", "/dev/fd/0/.."]
for path in knows["paths"]:
    found = []
    for way in ways:
        try:
            if os.lstat(way + path):
                found.append(way)
        except OSError:
            pass
    outcomes["path " + path] = "seen at %s" % found if found else "ENOENT"
for path in knows["sockets"]:
    attempt("host's socket " + path, connect(socket.AF_UNIX, path))

# What the mount table names, where it says that it is.
sources = set()
for line in open("/proc/self/mountinfo"):
    words = line.replace(" - ", " ").split()
    sources.update(word for word in words if word.startswith("/"))
    for option in words[-1].split(","):
        sources.update(path for path in option.partition("=")[2].split(":") if path.startswith("/"))
leading = [path for path in sources if "sandboxes" in path or knows["folder"] in path]
outcomes["mount table"] = "%s" % [path for path in leading if os.path.lexists(path)]

# Processes, memory and queues of others.
own = {"overwinter-gatew", "runc", "runsc"}
seen = [open("/proc/%s/comm" % pid).read().strip() for pid in processes]
outcomes["process names"] = "%s" % [name for name in seen if name in own]
for name, pid in knows["pids"].items():
    attempt("process " + name, lambda: os.kill(pid, 0))
    attempt("process root " + name, lambda: os.listdir("/proc/%d/root" % pid) and "seen")
attempt("shared memory", lambda: call(29, knows["key"], 0, 0))
attempt("message queue", lambda: call(240, b"victim", 0, 0, None))
attempt("socket table", lambda: "seen" if "overwinter" in open("/proc/net/unix").read().replace("/run/overwinter/gateway.sock", "") else "clean")

# Disks, and the kernel's ways out of a root folder.
attempt("disks", lambda: "%s" % [name for name in os.listdir("/dev") if name.startswith(("sd", "vd", "nvme", "loop", "dm", "kvm", "mem", "kmsg", "fuse"))])
for name, path in [("cgroup", "/sys/fs/cgroup"), ("debug", "/sys/kernel/debug"), ("security", "/sys/kernel/security")]:
    attempt("empty " + name, lambda: "%d seen" % len(os.listdir(path)))


def escape():
    """Two chroots: the way out of one, for root, where nothing else holds."""
    os.makedirs("/tmp/inner", exist_ok=True)
    top = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/inner")
    os.fchdir(top)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return "seen" if any(os.path.lexists(path) for path in knows["paths"]) else "ENOENT"


attempt("chroot twice", in_child(escape))
tell()
