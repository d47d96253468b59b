//! What the shipped binary may weigh, and how fast it must be. Run on the static build:
//!
//! ```text
//! OVERWINTER_SUPERVISOR=target/supervisor/overwinter-supervisor \
//!     cargo nextest run -p overwinter-supervisor --test shipped --run-ignored only --no-capture
//! ```

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::write_file_request::Message as Write;
use support::{Exec, Gateway, run, shell, start};

const SHIPPED: &str = "OVERWINTER_SUPERVISOR";

fn resident_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Processor time in clock ticks, which are 10 ms on Linux.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
#[ignore = "for the static build, named by OVERWINTER_SUPERVISOR"]
async fn it_is_small_with_fifty_processes_flooding() {
    let size = std::fs::metadata(std::env::var_os(SHIPPED).unwrap())
        .unwrap()
        .len();
    assert!(size < 4 << 20, "{size} bytes");
    let (gateway, session) = Gateway::attached().await;
    let pid = gateway.supervisor.id();
    println!("idle: {} KiB", resident_kib(pid, "VmRSS"));
    let mut readers = Vec::new();
    for n in 0..50 {
        let id = format!("p{n}");
        let flood = shell("yes & yes >&2");
        if n % 2 == 0 {
            let request = wire::StartProcessRequest {
                start: start(&id, flood).into(),
            };
            session.client.start_process(request).await.unwrap();
        } else {
            // Attached, and not read.
            readers.push(Exec::start(&session.client, &id, flood).await);
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (_, exit) = run(&session.client, "one-more", shell("true")).await;
    assert_eq!(exit.code, 0);
    let peak = resident_kib(pid, "VmHWM");
    println!(
        "50 floods: {} KiB, at most {peak} KiB",
        resident_kib(pid, "VmRSS")
    );
    let request = wire::TerminateRequest { grace_ms: 0 };
    session.client.terminate(request).await.unwrap();
    println!("after: {} KiB", resident_kib(pid, "VmRSS"));
    assert!(peak <= 8 << 10, "{peak} KiB");
}

#[tokio::test]
#[ignore = "for the static build, named by OVERWINTER_SUPERVISOR"]
async fn an_exec_and_a_large_file_are_fast() {
    let (gateway, session) = Gateway::attached().await;
    let client = &session.client;
    let mut times = Vec::new();
    for n in 0..200 {
        let since = Instant::now();
        let spec = wire::ProcessSpec {
            command: vec!["true".into()],
            ..Default::default()
        };
        run(client, &format!("p{n}"), spec).await;
        times.push(since.elapsed());
    }
    times.sort();
    println!("exec true: p50 {:?}, p99 {:?}", times[100], times[198]);

    const MIB: usize = 1024;
    let chunk = bytes::Bytes::from(vec![7; 256 << 10]);
    let parts = (0..MIB * 4).map(move |_| Write::Data(chunk.clone()));
    let first = Write::from(wire::WriteFileStart {
        path: "/dev/shm/overwinter-large".into(),
        ..Default::default()
    });
    let last = Write::from(wire::WriteFileEnd::default());
    let parts = std::iter::once(first).chain(parts).chain([last]);
    let parts = parts.map(|message| wire::WriteFileRequest {
        message: Some(message),
    });
    let pid = gateway.supervisor.id();
    let (since, before) = (Instant::now(), ticks(pid));
    client
        .write_file(futures::stream::iter(parts))
        .await
        .unwrap();
    println!(
        "write 1 GiB: {:.0} MiB/s, {} ms of processor inside",
        MIB as f64 / since.elapsed().as_secs_f64(),
        (ticks(pid) - before) * 10
    );
    let (since, before) = (Instant::now(), ticks(pid));
    let read = wire::ReadFileRequest {
        path: "/dev/shm/overwinter-large".into(),
        ..Default::default()
    };
    let mut stream = client.read_file(read).await.unwrap();
    let mut bytes = 0;
    while let Some(part) = stream.message::<wire::ReadFileResponse>().await.unwrap() {
        bytes += part.bytes().len();
    }
    println!(
        "read 1 GiB: {:.0} MiB/s, {} ms of processor inside",
        MIB as f64 / since.elapsed().as_secs_f64(),
        (ticks(pid) - before) * 10
    );
    assert!(bytes > MIB << 20);
    std::fs::remove_file("/dev/shm/overwinter-large").unwrap();
    println!(
        "at most {} KiB resident",
        resident_kib(gateway.supervisor.id(), "VmHWM")
    );
}

#[tokio::test]
#[ignore = "for the static build, named by OVERWINTER_SUPERVISOR; needs root"]
async fn it_needs_nothing_of_the_image() {
    let gateway = Gateway::start_in_an_empty_root();
    let session = gateway.accept().await;
    let (_, exit) = run(&session.client, "p1", shell("true")).await;
    assert_eq!(exit.code, 127, "{}", exit.error);
    let mut named = shell("true");
    named.user = "ana".into();
    let (_, exit) = run(&session.client, "p2", named).await;
    assert_eq!(exit.code, 126);
    assert!(exit.error.contains("ana"), "{}", exit.error);
    // A program of its own kind runs there: itself, which explains its flags.
    let itself = wire::ProcessSpec {
        command: vec!["/supervisor".into(), "--help".into()],
        ..Default::default()
    };
    let (exec, exit) = run(&session.client, "p3", itself).await;
    assert_eq!(exit.code, 2);
    assert!(
        exec.stderr
            .starts_with(b"overwinter-supervisor: unknown argument")
    );
    let make = wire::MakeDirectoryRequest {
        path: "folder".into(),
        ..Default::default()
    };
    session.client.make_directory(make).await.unwrap();
    assert!(gateway.work().join("folder").is_dir());
}
