//! `overwinter sandbox suspend|resume|start|delete`: the verbs that take several names. All are
//! sent at once; each has a line; any that failed makes the command fail.

use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use overwinter_client::raw::OperationKind as Kind;
use overwinter_client::{Accepted, Achieved, Client, Done, Error, Phase, SandboxRef};

use super::DepthArg;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::say;
use crate::progress;
use crate::signals::Signals;
use crate::text::{self, printable};

/// How long a gateway may take to say what goes on when we are asked to end.
const FAREWELL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Suspend {
    /// The sandboxes; may be left out where there is just one
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How deep; without it the policy's, else stop. One that sleeps already stays as it is
    #[arg(long, value_enum)]
    depth: Option<DepthArg>,
    /// With --depth freeze: give its memory back, to swap that is zram or encrypted
    #[arg(long)]
    reclaim: bool,
    /// Answer as soon as it is accepted
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The sandboxes; may be left out where there is just one
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Start cold on the same storage when what was kept cannot be restored
    #[arg(long)]
    restart_if_restore_fails: bool,
    /// Bring in what a freeze has given back before anything runs: the resume takes longer, and what
    /// it then uses is there
    #[arg(long)]
    prefetch: bool,
    /// Answer as soon as it is accepted
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The sandboxes; may be left out where there is just one
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Answer as soon as it is accepted
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// The sandboxes; may be left out where there is just one
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The backend is gone for good: forget the sandbox, and list what may remain
    #[arg(long)]
    abandon: bool,
    /// Answer as soon as it is accepted
    #[arg(long)]
    no_wait: bool,
}

pub(crate) async fn suspend(context: &Context, args: Suspend) -> Result<u8, Failure> {
    let depth = args.depth.map(overwinter_client::Depth::from);
    all(context, args.names, "suspending", async |sandbox| {
        let mut suspend = context.client.suspend(sandbox).reclaim(args.reclaim);
        if let Some(depth) = depth {
            suspend = suspend.depth(depth);
        }
        if args.no_wait {
            return Ok(accepted(&suspend.accept().await?));
        }
        let done = waited(
            &context.client,
            Some(sandbox),
            Kind::Suspend,
            suspend.wait(),
        )
        .await?;
        if args.reclaim {
            return Ok(given_back(&done));
        }
        Ok(now(&done))
    })
    .await
}

pub(crate) async fn resume(context: &Context, args: Resume) -> Result<u8, Failure> {
    all(context, args.names, "resuming", async |sandbox| {
        let resume = context.client.resume(sandbox);
        let resume = resume
            .restart_if_restore_fails(args.restart_if_restore_fails)
            .prefetch(args.prefetch);
        if args.no_wait {
            return Ok(accepted(&resume.accept().await?));
        }
        let done = waited(&context.client, Some(sandbox), Kind::Resume, resume.wait());
        Ok(told(&done.await?))
    })
    .await
}

pub(crate) async fn start(context: &Context, args: Start) -> Result<u8, Failure> {
    all(context, args.names, "starting", async |sandbox| {
        let start = context.client.start(sandbox);
        if args.no_wait {
            return Ok(accepted(&start.accept().await?));
        }
        let done = waited(&context.client, Some(sandbox), Kind::Start, start.wait());
        Ok(told(&done.await?))
    })
    .await
}

pub(crate) async fn delete(context: &Context, args: Delete) -> Result<u8, Failure> {
    all(context, args.names, "deleting", async |sandbox| {
        let delete = context.client.delete(sandbox).abandon(args.abandon);
        if args.no_wait {
            return Ok(accepted(&delete.accept().await?));
        }
        let done = waited(&context.client, Some(sandbox), Kind::Delete, delete.wait());
        Ok(with_remarks("deleted".to_owned(), &done.await?))
    })
    .await
}

/// What it is now, and whatever the gateway has to tell besides: a hook that failed, say.
fn told(done: &Done) -> String {
    with_remarks(now(done), done)
}

/// What became of its memory; the driver's remarks where it stays.
fn given_back(done: &Done) -> String {
    let retained = done.sandbox.raw().retained.as_option();
    match retained.and_then(|retained| retained.reclaimed.as_option()) {
        Some(reclaimed) => format!("{}, {}", now(done), text::reclaimed(reclaimed)),
        None => told(done),
    }
}

fn with_remarks(mut line: String, done: &Done) -> String {
    for remark in done.operation.iter().flat_map(|it| it.remarks()) {
        line.push_str(&format!("; {}", printable(remark)));
    }
    line
}

/// Does `verb` to all at once, and tells of each as it ends.
async fn all(
    context: &Context,
    names: Vec<String>,
    label: &str,
    verb: impl AsyncFn(&SandboxRef) -> Result<String, Failure>,
) -> Result<u8, Failure> {
    let sandboxes = context.sandboxes(names).await?;
    if let [sandbox] = &sandboxes[..] {
        let work = verb(sandbox);
        let line = progress::waiting(&context.client, label, Some(sandbox), work).await?;
        say(&format!("{} {line}", sandbox.as_str()))?;
        return Ok(0);
    }
    let label = format!("{label} {} sandboxes", sandboxes.len());
    let verb = &verb;
    let work = async {
        let mut running: FuturesUnordered<_> = sandboxes
            .iter()
            .map(|sandbox| async move { (sandbox, verb(sandbox).await) })
            .collect();
        let mut failed = 0;
        let mut left = None;
        while let Some((sandbox, ended)) = running.next().await {
            match ended {
                Ok(line) => say(&format!("{} {line}", sandbox.as_str()))?,
                Err(Failure::Gateway(error)) => {
                    failed += 1;
                    let name = sandbox.as_str().to_owned();
                    Failure::Named { name, error }.report();
                }
                Err(failure) => {
                    failed += 1;
                    left = left.or(failure.exit_code());
                    failure.report();
                }
            }
        }
        Ok::<_, Failure>((failed, left))
    };
    let (failed, left) = progress::waiting(&context.client, &label, None, work).await?;
    if let Some(code) = left {
        return Ok(code);
    }
    if failed > 0 {
        let all = sandboxes.len();
        return Err(Failure::SomeFailed { failed, all });
    }
    Ok(0)
}

/// Waits for a verb. A signal leaves it, and tells what goes on without us, as far as that can be
/// seen: a call that has not arrived is not made by whoever wanted to leave.
pub(super) async fn waited(
    client: &Client,
    sandbox: Option<&SandboxRef>,
    kind: Kind,
    wait: impl Future<Output = Result<Done, Error>>,
) -> Result<Done, Failure> {
    let mut signals = Signals::new().map_err(|error| Failure::local("signals", error))?;
    let signal = tokio::select! {
        biased;
        done = wait => return Ok(done?),
        signal = signals.end() => signal,
    };
    let operation = tokio::select! {
        found = tokio::time::timeout(FAREWELL, under_way(client, sandbox, kind)) => {
            found.unwrap_or_default()
        }
        _ = signals.end() => None,
    };
    Err(Failure::Left { signal, operation })
}

/// The id of the newest operation of that kind that has not ended.
async fn under_way(client: &Client, sandbox: Option<&SandboxRef>, kind: Kind) -> Option<String> {
    let now = client.get(sandbox?.clone()).await.ok()?;
    let now = now.raw();
    let newest_first = [now.waiting.as_option(), now.running.as_option()];
    let mut of_kind = newest_first
        .into_iter()
        .flatten()
        .filter(|it| it.kind == kind);
    of_kind.next().map(|operation| operation.id.clone())
}

fn accepted(answer: &Accepted) -> String {
    match answer.operation() {
        Some(operation) => format!("accepted {}", operation.id()),
        None => "already so".to_owned(),
    }
}

/// What it is now, and what was brought back.
fn now(done: &Done) -> String {
    let phase = done.sandbox.phase();
    let mut line = phase.as_str().to_owned();
    if let (Phase::Suspended, Some(depth)) = (phase, done.sandbox.depth()) {
        line.push_str(&format!(" ({})", depth.as_str()));
    }
    if done.operation.is_none() {
        line.push_str(" already");
    }
    match done.achieved {
        Achieved::Memory => line.push_str(" (memory)"),
        Achieved::Storage => line.push_str(" (storage)"),
        _ => {}
    }
    line
}
