//! What carries packets lives as long as the compute, and no longer: whatever ends, and whoever.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use overwinter_driver::{Depth, Driver, DriverError, EffectContext, Observed};
use overwinter_driver_local::{LocalConfig, Status, doctor};
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};

use crate::common::{BUSYBOX, Bed, Outcome, Receipts, credentials, open, sandbox, until};
use crate::inside::{TOLD, cannot_run, first, made, pids, reaches, spec, tell};
use crate::target::{PORT, Target, listen};

const PATIENCE: Duration = Duration::from_secs(10);

fn kill(pid: i32) {
    // SAFETY: a signal to a process of a sandbox of the test's own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The first of the last range, which no sandbox gets.
fn owner(bed: &Bed) -> u32 {
    bed.config.uid_base + bed.config.uid_count - 65_536
}

/// Processes of the user that networks belong to, left to this host's PID 1 and in no compute's group:
/// nobody would end them.
fn strays(bed: &Bed) -> Vec<String> {
    let user = owner(bed).to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stray = |process: &fs::DirEntry| {
        let read = |name| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        let status = read("status");
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next())
        };
        of("Uid:") == Some(&user)
            && of("PPid:") == Some("1")
            && of("State:") != Some("Z")
            && !read("cgroup").contains("/overwinter/")
    };
    processes
        .filter(stray)
        .map(|process| fs::read_to_string(process.path().join("status")).unwrap_or_default())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_there_with_the_compute_and_gone_with_it() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&[])?;
    let public = target.public.to_string();
    let mut bed = Bed::new(TOLD).await?;
    let id = made(&bed, "internet").await?;
    let carrier = pids(&bed, id, true);
    assert_eq!(carrier.len(), 1);
    let status = fs::read_to_string(format!("/proc/{}/status", carrier[0]))?;
    let says = |line: &str| {
        status
            .lines()
            .any(|it| it.split_whitespace().eq(line.split(' ')))
    };
    let user = owner(&bed);
    assert!(
        says(&format!("Uid: {user} {user} {user} {user}")),
        "{status}"
    );
    assert!(says("Seccomp: 2") && says("NoNewPrivs: 1"), "{status}");

    // A connection goes on over a freeze.
    let talk = format!(
        "(busybox sleep 3; echo over) | busybox nc {public} {PORT} > /workspace/heard; echo ended"
    );
    let talking = tell(&bed, id, &format!("({talk}) > /dev/null 2>&1 & echo begun")).await?;
    assert!(talking.contains("begun"));
    let heard = bed.sandbox_dir(id).join("workspace/heard");
    until("it is greeted", || {
        fs::read_to_string(&heard).is_ok_and(|it| it == "hello\n")
    })
    .await?;
    let frozen = bed
        .driver
        .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
        .await?;
    assert_eq!(
        pids(&bed, id, true),
        carrier,
        "it is not frozen, nor another"
    );
    bed.restart()?;
    bed.driver.recover(id, PATIENCE).await?;
    assert_eq!(pids(&bed, id, true), carrier, "another gateway lets it be");
    bed.driver
        .resume(
            &bed.effect(id, 3, 2),
            Depth::Freeze,
            &frozen.reference,
            &credentials(id, 2),
        )
        .await?;
    assert!(reaches(&bed, id, &public, PORT).await?);

    bed.driver
        .suspend(&bed.effect(id, 4, 2), Depth::Stop)
        .await?;
    assert_eq!(pids(&bed, id, true), Vec::<i32>::new(), "after a stop");
    bed.driver
        .start(
            &bed.effect(id, 5, 3),
            &spec(&bed, "internet"),
            &credentials(id, 3),
        )
        .await?;
    assert_ne!(pids(&bed, id, true), carrier);
    assert!(reaches(&bed, id, &public, PORT).await?, "it is made anew");

    // It ends by itself: nobody asks for it, and its network goes.
    kill(first(&bed, id)?);
    until("the network is gone", || pids(&bed, id, true).is_empty()).await?;
    bed.driver
        .start(
            &bed.effect(id, 6, 4),
            &spec(&bed, "internet"),
            &credentials(id, 4),
        )
        .await?;
    assert_eq!(pids(&bed, id, true).len(), 1);
    bed.driver.delete(&bed.effect(id, 7, 4)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    assert_eq!(strays(&bed), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_does_not_come_up_is_a_start_that_failed() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(TOLD).await?;
    let broken = bed.folder.path().join("pasta");
    bed.config.network.pasta = broken.clone();
    for (what, why) in [
        ("echo no way out >&2; exit 1", "no way out"),
        ("exec sleep 1000", "not ready"),
    ] {
        fs::write(&broken, format!("#!/bin/sh\n{what}\n"))?;
        fs::set_permissions(&broken, fs::Permissions::from_mode(0o755))?;
        bed.restart()?;
        let id = sandbox();
        let ctx = bed.effect(id, 1, 1);
        let made = bed
            .driver
            .create(&ctx, &spec(&bed, "internet"), &credentials(id, 1))
            .await;
        match made {
            Err(DriverError::Rejected(said)) => assert!(said.contains(why), "{said}"),
            other => return Err(format!("{other:?}").into()),
        }
        assert_eq!(pids(&bed, id, true), Vec::<i32>::new());
        assert_eq!(bed.left(), Vec::<String>::new());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_cannot_be_closed_costs_the_network_and_a_resume_mends_it() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&[])?;
    let public = target.public.to_string();
    let mut bed = Bed::new(TOLD).await?;
    let (nft, broken) = (
        bed.folder.path().join("nft"),
        bed.folder.path().join("broken"),
    );
    let script = format!(
        "#!/bin/sh\nPATH=/usr/sbin:/sbin:/usr/bin:/bin\n[ -e {} ] && echo no rules today >&2 && exit 1\nexec nft \"$@\"\n",
        broken.display()
    );
    fs::write(&nft, script)?;
    fs::set_permissions(&nft, fs::Permissions::from_mode(0o755))?;
    bed.config.network.nft = nft;
    bed.restart()?;
    let id = made(&bed, "internet").await?;
    assert!(reaches(&bed, id, &public, PORT).await?);
    let listener = TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    let host = Arc::new(AtomicUsize::new(0));
    listen(listener, Arc::clone(&host), Arc::default());

    fs::write(&broken, "")?;
    let late = target.near("198.51.105.1")?.to_string();
    until("its network is cut", || pids(&bed, id, true).is_empty()).await?;
    assert!(!reaches(&bed, id, &late, port).await?);
    assert!(!reaches(&bed, id, &public, PORT).await?);
    assert!(
        matches!(bed.observed(id).await?, Observed::Live { .. }),
        "it lives"
    );
    let another = made(&bed, "internet").await.expect_err("no filter");
    assert!(another.to_string().contains("no rules today"), "{another}");

    // It does not come back before the address can be closed.
    let asleep = |fence, held| bed.effect(id, fence, held);
    let frozen = bed.driver.suspend(&asleep(2, 1), Depth::Freeze).await?;
    let (ctx, new) = (asleep(3, 2), credentials(id, 2));
    let resumed = bed
        .driver
        .resume(&ctx, Depth::Freeze, &frozen.reference, &new)
        .await?;
    assert!(
        resumed
            .remarks
            .iter()
            .any(|it| it.contains("no rules today")),
        "{resumed:?}"
    );
    assert_eq!(pids(&bed, id, true), Vec::<i32>::new());
    fs::remove_file(&broken)?;
    let frozen = bed.driver.suspend(&asleep(4, 2), Depth::Freeze).await?;
    let (ctx, new) = (asleep(5, 3), credentials(id, 3));
    let resumed = bed
        .driver
        .resume(&ctx, Depth::Freeze, &frozen.reference, &new)
        .await?;
    assert!(
        resumed.remarks.iter().any(|it| it.contains("made anew")),
        "{resumed:?}"
    );
    assert!(reaches(&bed, id, &public, PORT).await?, "it is mended");
    assert!(!reaches(&bed, id, &late, port).await?);
    assert_eq!(host.load(Ordering::Relaxed), 0, "nothing came to this host");

    // One that has ended by itself, while another gateway took over.
    kill(pids(&bed, id, true)[0]);
    until("it has ended", || pids(&bed, id, true).is_empty()).await?;
    assert_eq!(
        doctor_says(&bed),
        (Status::Warn, "lost by 1 of 1: winter".to_owned())
    );
    bed.restart()?;
    bed.driver.recover(id, PATIENCE).await?;
    let resumed = bed
        .driver
        .reattach(&bed.effect(id, 6, 4), &credentials(id, 4))
        .await?;
    assert!(
        resumed.remarks.iter().any(|it| it.contains("made anew")),
        "{resumed:?}"
    );
    assert!(
        reaches(&bed, id, &public, PORT).await?,
        "it is mended again"
    );
    assert_eq!(
        doctor_says(&bed),
        (Status::Ok, "all 1 are there".to_owned())
    );
    assert!(!reaches(&bed, id, &late, port).await?);
    bed.driver.delete(&bed.effect(id, 7, 4)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    assert_eq!(strays(&bed), Vec::<String>::new());
    Ok(())
}

fn doctor_says(bed: &Bed) -> (Status, String) {
    let checks = doctor(&bed.config.state_dir, &bed.config.runtime);
    let check = checks
        .into_iter()
        .find(|it| it.name == "networks of sandboxes");
    check.map(|it| (it.status, it.detail)).unwrap()
}

/// What the process that is killed is told.
const DOOMED: &str = "OVERWINTER_TEST_NETWORK";

/// One create, in the process that is killed; nothing in the run of all tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_that_is_killed() -> Outcome {
    let Ok(told) = env::var(DOOMED) else {
        return Ok(());
    };
    let told: serde_json::Value = serde_json::from_str(&told)?;
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    let mut config = LocalConfig::new(text("state").into(), BUSYBOX.into(), text("gateway"));
    config.init_args = Some(["/bin/sh", "-c", TOLD].map(str::to_owned).to_vec());
    let id: SandboxId = text("sandbox").parse()?;
    let receipts = std::sync::Arc::new(Receipts::default());
    let key = EffectKey {
        sandbox: id,
        fence: Fence(1),
        serial: Serial(1),
    };
    receipts.record(key);
    let ctx = EffectContext {
        key,
        incarnation: Incarnation(1),
        deadline: Duration::from_secs(20),
        options: overwinter_driver::EffectOptions::default(),
    };
    let (driver, _, _connections) = open(&config, receipts)?;
    let mut spec: overwinter_driver::ComputeSpec = serde_json::from_value(told["spec"].clone())?;
    spec.network = "internet".to_owned();
    driver.create(&ctx, &spec, &credentials(id, 1)).await?;
    std::process::abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_at_any_moment_of_a_start_leaves_no_network_behind() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&[])?;
    let mut bed = Bed::new(TOLD).await?;
    let (mut lived, mut died) = (0, 0);
    for round in 0..24 {
        let id = sandbox();
        let told = serde_json::json!({
            "state": bed.config.state_dir, "gateway": bed.config.gateway_id,
            "sandbox": id.to_string(), "spec": bed.spec(),
        });
        let mut gateway = Command::new(env::current_exe()?)
            .args(["--exact", "lives::the_gateway_that_is_killed"])
            .env(DOOMED, told.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // From before it has begun until after it has ended, which is when it ends itself.
        std::thread::sleep(Duration::from_millis(40 + 10 * round));
        if round < 23 {
            gateway.kill()?;
        }
        gateway.wait()?;
        bed.restart()?;
        bed.driver.recover(id, Duration::from_millis(200)).await?;
        match bed.observed(id).await? {
            Observed::Live { .. } => {
                lived += 1;
                assert_eq!(pids(&bed, id, true).len(), 1);
                assert!(reaches(&bed, id, &target.public.to_string(), PORT).await?);
                if lived % 2 == 0 {
                    // Ended while no gateway watches it: what comes next clears up.
                    kill(first(&bed, id)?);
                }
            }
            Observed::Absent | Observed::Stopped => {
                died += 1;
                assert_eq!(pids(&bed, id, true), Vec::<i32>::new(), "round {round}");
            }
            other => return Err(format!("{other:?}").into()),
        }
        bed.driver.delete(&bed.effect(id, 2, 1)).await?;
        assert_eq!(pids(&bed, id, true), Vec::<i32>::new(), "round {round}");
        assert_eq!(strays(&bed), Vec::<String>::new(), "round {round}");
    }
    assert!(lived > 0 && died > 0, "{lived} lived and {died} did not");
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}
