#!/usr/bin/env python3
"""Makes profile.json (OCI form) from the profile of containers-common.

    ./convert.py /usr/share/containers/seccomp.json > profile.json

Run by hand when the source is renewed; the build embeds profile.json and needs no Python.
"""
import json
import sys

CAPS = {"CAP_" + c for c in
        "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE "
        "SYS_CHROOT MKNOD SETFCAP AUDIT_WRITE".split()}
# Where the source has a 64-bit and a 32-bit name for one machine, both are named.
ARCHES = {"amd64", "arm64"}
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
PID_1 = 1
NEW_NAMESPACES = 0x7E020000
LOW_32 = 0xFFFFFFFF

# Need CAP_SYS_ADMIN or reach far into the kernel; the source lets them through to its checks.
REFUSED = set("""mount umount umount2 pivot_root move_mount open_tree mount_setattr fsopen fsconfig
fsmount fspick setns add_key keyctl request_key userfaultfd""".split())
REPLACED = set("""clone clone3 unshare prlimit64 socket io_uring_setup io_uring_enter io_uring_register""".split())


def rule(names, action, args=(), errno=None):
    made = {"names": sorted(names), "action": action}
    if errno is not None:
        made["errnoRet"] = errno
    if args:
        made["args"] = list(args)
    return made


def allow(names, *args):
    return rule(names, "SCMP_ACT_ALLOW", args)


def refuse(names, errno, *args):
    return rule(names, "SCMP_ACT_ERRNO", args, errno)


def arg(index, op, value, two=0):
    return {"index": index, "value": value, "valueTwo": two, "op": "SCMP_CMP_" + op}


def applies(entry):
    includes, excludes = entry.get("includes") or {}, entry.get("excludes") or {}
    if set(includes.get("caps") or []) - CAPS or set(excludes.get("caps") or []) & CAPS:
        return False
    arches = includes.get("arches")
    return not arches or bool(set(arches) & ARCHES)


def own_rules():
    yield refuse(REFUSED, EPERM)
    yield refuse(["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"], ENOSYS)
    for name in ("clone", "unshare"):
        yield allow([name], arg(0, "MASKED_EQ", NEW_NAMESPACES, 0))
        for bit in range(64):
            if NEW_NAMESPACES >> bit & 1:
                yield refuse([name], EPERM, arg(0, "MASKED_EQ", 1 << bit, 1 << bit))
    # The limits of PID 1: any other number has one of the upper bits, or is 0. By masks, since the
    # kernel looks at 32 bits of the 64 that a filter sees.
    yield refuse(["prlimit64"], EPERM, arg(0, "MASKED_EQ", LOW_32, PID_1))
    yield allow(["prlimit64"], arg(0, "MASKED_EQ", LOW_32, 0))
    for bit in range(1, 23):
        yield allow(["prlimit64"], arg(0, "MASKED_EQ", 1 << bit, 1 << bit))
    # AF_VSOCK (40) is in no network namespace and reaches the host; later families are left out.
    yield allow(["socket"], arg(0, "LT", 40))
    yield refuse(["socket"], EAFNOSUPPORT, arg(0, "GE", 40))


def main():
    with open(sys.argv[1]) as file:
        source = json.load(file)
    syscalls = []
    for entry in filter(applies, source["syscalls"]):
        names = set(entry["names"]) - REFUSED - REPLACED
        if names:
            args = [{k: a[k] for k in ("index", "value", "valueTwo", "op")} for a in entry["args"] or []]
            syscalls.append(rule(names, entry["action"], args, entry.get("errnoRet")))
    syscalls.extend(own_rules())
    json.dump({"defaultAction": source["defaultAction"],
               "defaultErrnoRet": source["defaultErrnoRet"], "syscalls": syscalls},
              sys.stdout, separators=(",", ":"))
    print()


main()
