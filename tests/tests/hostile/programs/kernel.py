import platform, signal

if "become" in knows:
    # Root inside may become any user, the one of PID 1 as well.
    os.setgroups([])
    os.setresgid(knows["become"], knows["become"], knows["become"])
    os.setresuid(knows["become"], knows["become"], knows["become"])

buffer = ctypes.create_string_buffer(4096)
here = b"/tmp"

# PID 1: traced, read, limited, and made the first victim.
for request, number in {"attach": 16, "seize": 0x4206}.items():
    attempt("ptrace " + request, in_child(lambda: call(101, number, 1, 0, 0)))


class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]


local = Piece(ctypes.addressof(buffer), 8)
remote = Piece(0x400000, 8)
attempt("memory process_vm_readv", lambda: call(310, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
for name in ["mem", "environ", "maps", "auxv", "stack", "syscall", "pagemap"]:
    attempt("memory " + name, lambda: len(open("/proc/1/" + name, "rb").read(8)) and "read")
attempt("memory write", lambda: os.close(os.open("/proc/1/mem", os.O_WRONLY)))
for name in ["root", "cwd", "exe", "ns/user"]:
    attempt("link " + name, lambda: os.readlink("/proc/1/" + name))


def descriptor():
    """Any file that PID 1 has open: its connection, say."""
    answers = set()
    for fd in range(64):
        try:
            os.close(os.open("/proc/1/fd/%d" % fd, os.O_RDONLY))
            return "open"
        except (PermissionError, FileNotFoundError) as error:
            answers.add(name_of(error.errno))
    return (answers - {"ENOENT"} or {"none is there"}).pop()


attempt("link fd", descriptor)
attempt("link fd target", lambda: os.readlink("/proc/1/fd/0"))
pidfd = os.pidfd_open(1)
attempt("steal descriptor", lambda: call(438, pidfd, 0, 0))
attempt("limit prlimit", lambda: call(302, 1, 7, ctypes.byref((ctypes.c_ulong * 2)(0, 0)), None))


def victim(score):
    with open("/proc/1/oom_score_adj", "w") as it:
        it.write(score)


attempt("victim", lambda: victim("1000"))
attempt("limit victim never", lambda: victim("-1000"))
for number in range(1, 65):
    attempt("signal %d" % number, lambda: call(62, 1, number))
attempt("signal pidfd", lambda: call(424, pidfd, signal.SIGKILL, None, 0))

# Namespaces.
kinds = {"time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
         "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
for name, flag in kinds.items():
    attempt("unshare " + name, in_child(lambda: call(272, flag)))


def clone(flag):
    child = libc.syscall(56, ctypes.c_long(flag | signal.SIGCHLD), 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return "ok" if child > 0 else name_of(ctypes.get_errno())


for name, flag in kinds.items():
    if name != "time":
        attempt("clone " + name, in_child(lambda: clone(flag)))
attempt("clone3", lambda: call(435, buffer, 88))
for name in ["user", "mnt", "pid", "net"]:
    attempt("setns " + name, in_child(lambda: call(308, os.open("/proc/self/ns/" + name, os.O_RDONLY), 0)))

# Mounts.
attempt("mount tmpfs", lambda: call(165, b"x", here, b"tmpfs", 0, None))
attempt("mount bind", lambda: call(165, b"/", here, None, 4096, None))
attempt("mount remount", lambda: call(165, b"x", b"/proc", None, 32, None))
attempt("mount overlay", lambda: call(165, b"x", here, b"overlay", 0, b"lowerdir=/"))
attempt("mount umount", lambda: call(166, b"/proc", 2))
attempt("mount pivot_root", lambda: call(155, here, here))
attempt("mount open_tree", lambda: call(428, -100, b"/", 1))
attempt("mount move_mount", lambda: call(429, -100, here, -100, here, 0))
attempt("mount fsopen", lambda: call(430, b"tmpfs", 0))
attempt("mount setattr", lambda: call(442, -100, here, 0, buffer, 32))
attempt("handle", lambda: call(304, -100, buffer, 0))

# Calls with no business in a sandbox.
forbidden = {
    "keyctl": (250, 0, -3, 0), "add_key": (248, b"user", b"x", b"y", 1, -3),
    "request_key": (249, b"user", b"x", None, -3), "bpf": (321, 5, buffer, 128),
    "perf_event_open": (298, buffer, 0, -1, -1, 0), "userfaultfd": (323, 0),
    "userfaultfd user mode": (323, 1), "io_uring_setup": (425, 4, buffer),
    "kexec_load": (246, 0, 0, None, 0), "init_module": (175, buffer, 8, b""),
    "finit_module": (313, 0, b"", 0), "delete_module": (176, b"x", 0), "iopl": (172, 3),
    "ioperm": (173, 0, 1, 1), "swapon": (167, b"/x", 0), "swapoff": (168, b"/x"),
    "reboot": (169, 0xfee1dead, 672274793, 0, None), "acct": (163, None),
    "quotactl": (179, 0x80000100, b"/", 0, buffer), "sethostname": (170, b"x", 1),
    "setdomainname": (171, b"x", 1), "settimeofday": (164, buffer, None),
    "clock_settime": (227, 0, buffer), "fanotify_init": (300, 0, 0), "vhangup": (153,),
    "syslog": (103, 3, buffer, 16), "process_madvise": (440, pidfd, buffer, 1, 21, 0),
    "move_pages": (279, 1, 0, None, None, None, 0), "kcmp": (312, 1, 1, 0, 0, 0),
    "lookup_dcookie": (212, 1, buffer, 16), "uselib": (134, b"/bin/sh"),
    "personality": (135, 0x0040000),
}
for name, arguments in forbidden.items():
    attempt("forbidden " + name, in_child(lambda: call(*arguments)))

# Devices and what the kernel shows.
for name, kind, major, minor in [("disk", 0o060000, 8, 0), ("virtual disk", 0o060000, 254, 0),
                                 ("memory", 0o020000, 1, 1), ("kernel messages", 0o020000, 1, 11)]:
    path = "/tmp/" + name

    def made():
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        os.open(path, os.O_RDONLY)

    attempt("device " + name, made)
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
             "/proc/sys/net/ipv4/ip_forward", "/proc/irq/0/smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled"]:
    attempt("kernel write " + path, lambda: os.close(os.open(path, os.O_WRONLY)))
for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware",
             "/proc/acpi", "/proc/scsi"]:

    def seen():
        if os.path.isdir(path):
            return "%d seen" % len(os.listdir(path))
        return "%d seen" % len(open(path, "rb").read(64))

    attempt("kernel read " + path, seen)

# Sockets.
for name, family, kind, protocol in [
    ("raw", socket.AF_INET, socket.SOCK_RAW, 1), ("raw 6", socket.AF_INET6, socket.SOCK_RAW, 58),
    ("packet", socket.AF_PACKET, socket.SOCK_RAW, 768), ("vsock", 40, socket.SOCK_STREAM, 0),
    ("xdp", 44, socket.SOCK_RAW, 0), ("bluetooth", 31, socket.SOCK_RAW, 1)]:
    attempt("socket " + name, lambda: socket.socket(family, kind, protocol).close())


def interface():
    """RTM_NEWLINK of a dummy, in its own network."""
    import struct
    route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = struct.pack("=BxHiII", 0, 0, 0, 1, 1)
    route.send(struct.pack("=IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
    answer = route.recv(4096)
    kind, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
    return "ok" if kind == 2 and code == 0 else name_of(-code)


attempt("socket interface", interface)
tell()
