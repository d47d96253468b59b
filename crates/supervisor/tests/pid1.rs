//! As PID 1 of a namespace of its own, under its reserved user with ambient capabilities: the way
//! a container runtime starts it. Needs root and util-linux; says so where it cannot run.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use overwinter_api::supervisor as wire;
use support::{Exec, Gateway, run, shell, start};

const CAPABILITIES: &str = "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
                            +sys_chroot,+net_bind_service,+mknod,+setfcap,+audit_write";

fn wrapper() -> Vec<String> {
    let mut words: Vec<String> = "unshare --pid --mount --fork --kill-child --mount-proc setpriv \
        --reuid 65535 --regid 65535 --clear-groups"
        .split_whitespace()
        .map(Into::into)
        .collect();
    let bounding = CAPABILITIES.replacen('+', "-all,+", 1);
    words.push(format!("--inh-caps={CAPABILITIES}"));
    words.push(format!("--ambient-caps={CAPABILITIES}"));
    words.push(format!("--bounding-set={bounding}"));
    words
}

/// A gateway whose supervisor is PID 1, or `None` where this host allows none.
async fn pid1() -> Option<(Gateway, support::Session)> {
    let words = wrapper();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let possible = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !possible {
        eprintln!("skipped: no namespaces here");
        return None;
    }
    let gateway = Gateway::start_under(&words, &[]);
    let open = |path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    open(gateway.folder.path().to_owned());
    open(gateway.work());
    let session = gateway.accept().await;
    Some((gateway, session))
}

#[tokio::test]
async fn nothing_inside_ends_stops_or_reads_it() {
    let Some((_gateway, session)) = pid1().await else {
        return;
    };
    let client = &session.client;
    let attack = "cat /proc/1/environ >/dev/null 2>&1 && echo READ; \
        cat /proc/1/mem >/dev/null 2>&1 && echo MEM; readlink /proc/1/fd/0 /proc/1/exe 2>&1 && echo LINK; \
        s=1; while [ $s -le 64 ]; do kill -$s 1 2>/dev/null; s=$((s+1)); done; id -u";
    let (exec, exit) = run(client, "p1", shell(attack)).await;
    assert_eq!(exit.code, 0);
    assert_eq!(String::from_utf8(exec.stdout).unwrap(), "0\n");

    let as_user = wire::ProcessSpec {
        user: "1234:77".into(),
        ..shell(&format!(
            "{attack}; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status"
        ))
    };
    let (exec, exit) = run(client, "p2", as_user).await;
    assert_eq!(exit.code, 0);
    let text = String::from_utf8(exec.stdout).unwrap();
    assert!(text.starts_with("1234\n"), "{text}");
    assert_eq!(text.matches("0000000000000000").count(), 4, "{text}");

    // Root has what the sandbox was granted, none of it by inheritance, and is the likelier
    // victim when memory runs out.
    let look = "grep -E 'Cap(Inh|Eff|Amb)' /proc/self/status; \
        test $(cat /proc/self/oom_score_adj) -gt $(cat /proc/1/oom_score_adj) && echo victim";
    let (exec, _) = run(client, "p3", shell(look)).await;
    let text = String::from_utf8(exec.stdout).unwrap();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap()
    };
    assert_eq!((value("CapInh"), value("CapAmb")), (0, 0), "{text}");
    assert_eq!(value("CapEff").count_ones(), 13, "{text}");
    assert!(text.ends_with("victim\n"), "{text}");
}

#[tokio::test]
async fn its_files_have_the_owner_who_asked() {
    let Some((gateway, session)) = pid1().await else {
        return;
    };
    std::fs::write(gateway.work().join("secret"), "x").unwrap();
    std::fs::set_permissions(
        gateway.work().join("secret"),
        PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let stat = wire::MakeDirectoryRequest {
        path: "roots".into(),
        ..Default::default()
    };
    session.client.make_directory(stat).await.unwrap();
    let look = "stat -c '%u %g %a' roots";
    let (exec, _) = run(&session.client, "p1", shell(look)).await;
    assert_eq!(String::from_utf8(exec.stdout).unwrap(), "0 0 755\n");
    let read = wire::ReadFileRequest {
        path: "secret".into(),
        user: "1234".into(),
        ..Default::default()
    };
    let mut stream = session.client.read_file(read).await.unwrap();
    let error = stream.message::<wire::ReadFileResponse>().await;
    assert_eq!(
        support::reason(&error.err().unwrap()),
        "FILE_PERMISSION_DENIED"
    );
}

#[tokio::test]
async fn terminate_reaches_what_has_left_its_group_and_orphans_are_reaped() {
    let Some((_gateway, session)) = pid1().await else {
        return;
    };
    let client = &session.client;
    // Each is an orphan at once; the first ends by itself and must leave no zombie.
    let script = "setsid sh -c 'true & ' ; setsid sh -c 'trap \"\" TERM HUP; touch up; \
        while :; do sleep 0.02; done' </dev/null >/dev/null 2>&1 & while ! test -e up; do sleep 0.01; done";
    assert_eq!(run(client, "p1", shell(script)).await.1.code, 0);
    let zombies = "grep -l 'State:.Z' /proc/[0-9]*/status; true";
    let (exec, _) = run(client, "p2", shell(zombies)).await;
    assert_eq!(String::from_utf8(exec.stdout).unwrap(), "");
    let count = "ls -d /proc/[0-9]* | wc -l";
    let (exec, _) = run(client, "p3", shell(count)).await;
    let before: u32 = String::from_utf8(exec.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(
        before >= 5,
        "PID 1, the daemon with its sleep, and the look itself: {before}"
    );

    let tty = wire::ProcessSpec {
        tty: wire::WindowSize::default().into(),
        stdin: true,
        command: vec!["bash".into(), "--norc".into()],
        ..Default::default()
    };
    let mut bash = Exec::start(client, "p4", tty).await;
    bash.until_stdout("# ").await;
    let request = wire::TerminateRequest { grace_ms: 200 };
    let answer = client.terminate(request).await.unwrap().into_owned();
    let cause = |id: &str| {
        let found = answer.results.iter().find(|result| result.process_id == id);
        found.unwrap().cause
    };
    assert_eq!(cause("p1"), wire::ExitCause::Own);
    assert_eq!(cause("p4"), wire::ExitCause::Suspension);

    client.unquiesce(Default::default()).await.unwrap();
    let (exec, _) = run(client, "p5", shell(count)).await;
    let after: u32 = String::from_utf8(exec.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(after < before, "{after} of {before} are left");
    let again = wire::StartProcessRequest {
        start: start("p1", shell(script)).into(),
    };
    let known = client.start_process(again).await.unwrap().into_owned();
    assert!(!known.process.as_option().unwrap().running);
}
