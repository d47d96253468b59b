//! One memory, restored twice: what comes of the kernel's random numbers is not the same twice.
//!
//! No verb does that: what was consumed is not restored again. But a backup of the host's disk can, and
//! what is drawn after it must not have been drawn before. What a program keeps in its own memory *is*
//! the same, and is looked at too: else two different memories would pass for one.

mod common;

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use common::{Bed, Outcome, credentials, runsc, sandbox, supervisor, until};
use overwinter_api::supervisor as wire;
use overwinter_driver::attach::{AttachProof, Io};
use overwinter_driver::session::AttachRequest;
use overwinter_driver::{Agent, Compute, Credentials, Depth, Driver, session};

/// Has drawn before the checkpoint: from a device that stays open, and from the shell's own generator.
/// Once it can tell that it slept it draws again, from the shell's and from the kernel's in each way.
const DRAWING: &str = "exec 7< /dev/urandom; own() { echo own$RANDOM$RANDOM$RANDOM$RANDOM; }; \
    draw() { head -c 16 | od -An -tx1 | tr -d ' \\n'; echo; }; \
    was=$(cat /run/overwinter/incarnation); own > /workspace/first; draw <&7 >> /workspace/first; \
    while [ \"$(cat /run/overwinter/incarnation)\" = \"$was\" ]; do sleep 0.02; done; \
    own > /workspace/.drawn; draw <&7 >> /workspace/.drawn; draw < /dev/urandom >> /workspace/.drawn; \
    draw < /dev/random >> /workspace/.drawn; mv /workspace/.drawn /workspace/drawn; sleep 1000";

const WAIT: Duration = Duration::from_secs(20);

/// What somebody inside has drawn after a restore.
struct Drawn {
    /// By the shell's own generator: of its memory.
    own: String,
    /// Of the kernel: an open device, `/dev/urandom`, `/dev/random`.
    kernel: Vec<String>,
    /// The supervisor's, whose new secret is of `getrandom`.
    proof: AttachProof,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_memory_that_is_restored_twice_draws_new_random_numbers_each_time() -> Outcome {
    let (Some(runsc), Some(binary)) = (runsc(), supervisor()) else {
        return Ok(());
    };
    let mut bed = Bed::on(&runsc, "").await?;
    bed.config.init_args = None;
    bed.config.supervisor = binary;
    bed.restart()?;
    let id = sandbox();
    let workspace = bed.sandbox_dir(id).join("workspace");
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    let (_, io) = attached(&mut bed, &credentials(id, 1)).await?;
    let agent = session::accept(io).await?;
    agent.start_process(drawing()).await?;
    let first = workspace.join("first");
    let lines = || fs::read_to_string(&first).map_or(0, |text| text.lines().count());
    until("it has drawn", || lines() == 2).await?;
    agent.detach().await?;
    drop(agent);
    let taken = bed
        .driver
        .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
        .await?;
    assert_eq!(taken.compute, Compute::Absent);

    let generation = bed.sandbox_dir(id).join("generation");
    let belongs_to = fs::read(&generation)?;
    let mut drawn = Vec::new();
    for restore in 0..2 {
        // The disk as it was when the memory was taken.
        fs::write(&generation, &belongs_to)?;
        let (fence, incarnation) = (3 + 2 * restore, 2 + restore);
        let ctx = bed.effect(id, fence, incarnation);
        let credentials = credentials(id, incarnation);
        bed.driver
            .resume(&ctx, Depth::Checkpoint, &taken.reference, &credentials)
            .await?;
        let (request, io) = attached(&mut bed, &credentials).await?;
        until("it has drawn again", || workspace.join("drawn").exists()).await?;
        let text = fs::read_to_string(workspace.join("drawn"))?;
        fs::remove_file(workspace.join("drawn"))?;
        let (own, kernel) = text.split_once('\n').ok_or("nothing was drawn")?;
        drawn.push(Drawn {
            own: own.to_owned(),
            kernel: kernel.lines().map(str::to_owned).collect(),
            proof: request.proof,
        });
        drop(io);
        let stop = bed.effect(id, fence + 1, incarnation);
        bed.driver.suspend(&stop, Depth::Stop).await?;
    }
    let [a, b] = &drawn[..] else {
        return Err("it was restored twice".into());
    };
    // It was one memory.
    assert!(a.own.len() > 8, "{}", a.own);
    assert_eq!(a.own, b.own);
    assert!(a.proof.previous_secret.is_some());
    assert_eq!(a.proof.previous_secret, b.proof.previous_secret);
    // And what the kernel gave it was new: 16 bytes each, no two alike.
    let kernel: HashSet<_> = a.kernel.iter().chain(&b.kernel).collect();
    assert!(kernel.iter().all(|it| it.len() == 32), "{kernel:?}");
    assert_eq!(kernel.len(), 6, "{:?} {:?}", a.kernel, b.kernel);
    assert_ne!(a.proof.secret, b.proof.secret);

    bed.driver.delete(&bed.effect(id, 9, 4)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// The attach with these credentials. One of before may have dialled once more before it was ended.
async fn attached(
    bed: &mut Bed,
    credentials: &Credentials,
) -> Result<(AttachRequest, Box<dyn Io>), Box<dyn std::error::Error>> {
    loop {
        let came = tokio::time::timeout(WAIT, bed.connections.recv()).await?;
        let (_, mut io, _) = came.ok_or("nobody came")?;
        match session::read_request(&mut io).await {
            Ok(request) if request.proof.token == credentials.token => return Ok((request, io)),
            Ok(_) | Err(_) => {}
        }
    }
}

fn drawing() -> wire::ExecStart {
    let command = ["/bin/sh", "-c", DRAWING];
    wire::ExecStart {
        process_id: "00000000-0000-4000-8000-000000000001".to_owned(),
        process: wire::ProcessSpec {
            command: command.map(str::to_owned).to_vec(),
            ..Default::default()
        }
        .into(),
    }
}
