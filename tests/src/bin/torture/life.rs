//! Processes: those that should have lived are asked.

use std::time::Duration;

use anyhow::Context;
use overwinter_client::{Error, ExecEvent, Exit, Reattach};

use crate::ledger::{Ledger, Life};
use crate::stage::Stage;

/// Whoever lives writes it again; what the last life wrote is gone.
/// Another client may ask at the same time, and remove it just after it was seen.
const ASK: &str = "rm -f /tmp/count; for i in $(seq 250); do cat /tmp/count 2>/dev/null && exit; \
    usleep 20000; done; exit 1";
/// Long enough to be met by a kill or a suspend.
const LINES: u32 = 60;
/// How long a stream waits for its sandbox to wake up again.
const ASLEEP: Duration = Duration::from_secs(3);

fn refused(stage: &Stage, what: &'static str, error: &Error) {
    stage.judge(what, error);
    stage.report.did(what, error.reason().to_owned());
}

/// There is one main process, and it is the one that was met in this epoch. Answers whether it could
/// be asked.
pub(crate) async fn main_lives(stage: &Stage, ledger: &Ledger) -> bool {
    let epoch = ledger.steady();
    let counted = epoch.and_then(|epoch| ledger.counted(epoch));
    let client = &stage.client;
    let asked = async {
        // First: a list is answered while it sleeps too, and says what ran before.
        let command = client.command(ledger.id.as_str(), ["/bin/sh", "-c", ASK]);
        let ran = command.run().await?;
        Ok::<_, Error>((client.processes(ledger.id.as_str()).await?, ran))
    };
    let (processes, ran) = match asked.await {
        Ok(asked) => asked,
        Err(error) => {
            refused(stage, "ask", &error);
            return false;
        }
    };
    stage.report.did("ask", "answered");
    let Some(epoch) = epoch.filter(|epoch| ledger.steady() == Some(*epoch)) else {
        return false;
    };
    let mains: Vec<_> = processes
        .iter()
        .filter(|it| it.main && it.running)
        .collect();
    let [main] = mains[..] else {
        stage.report.broken(format!(
            "{} has {} main processes: {processes:?}",
            ledger.id,
            mains.len()
        ));
        return false;
    };
    let said = String::from_utf8_lossy(&ran.stdout);
    let life = parse(&said).map(|(word, count)| Life {
        process: main.process_id.clone(),
        pid: main.pid,
        word,
        count,
    });
    match life {
        Err(error) => stage.report.broken(format!(
            "the main process {} of {} does not answer: {error:#}: {ran:?}",
            main.process_id, ledger.id
        )),
        Ok(life) if counted.is_some_and(|counted| life.count < counted) => {
            stage.report.broken(format!(
                "{}: {life:?} runs, and had counted to {counted:?} before",
                ledger.id
            ));
        }
        Ok(life) => match ledger.met(epoch, life.clone()) {
            Ok(()) => stage.report.proved("main processes that lived on"),
            Err(known) => stage.report.broken(format!(
                "{}: {life:?} runs, and {known:?} should have lived",
                ledger.id
            )),
        },
    }
    true
}

fn parse(said: &str) -> anyhow::Result<(String, u64)> {
    let (word, count) = said.trim().split_once(' ').context("no two words")?;
    Ok((word.to_owned(), count.parse()?))
}

/// A process that was started and left: it runs for as long as nobody ends it. Starts one where the
/// client has none.
pub(crate) async fn left_running(stage: &Stage, ledger: &Ledger, client: usize) {
    let mut drawer = ledger.drawers[client].lock().await;
    let Some(epoch) = ledger.steady() else { return };
    match drawer.process.take().filter(|(since, _)| *since == epoch) {
        Some((_, process)) => {
            let found = stage.client.process(ledger.id.as_str(), &process).await;
            if ledger.steady() != Some(epoch) {
                return;
            }
            match found {
                Ok(found) if found.running => {
                    stage.report.proved("processes left that lived on");
                }
                Ok(found) => stage.report.broken(format!(
                    "{} {process} should have lived: {found:?}",
                    ledger.id
                )),
                Err(error) if error.reason() == "PROCESS_NOT_FOUND" => stage
                    .report
                    .broken(format!("{} {process} is forgotten: {error}", ledger.id)),
                Err(error) => refused(stage, "look", &error),
            }
            drawer.process = Some((epoch, process));
        }
        None => {
            let command = stage
                .client
                .command(ledger.id.as_str(), ["sleep", "1000000"]);
            match command.start().await {
                Ok(started) if ledger.steady() == Some(epoch) => {
                    drawer.process = Some((epoch, started.process_id));
                    stage.report.did("leave running", "started");
                }
                Ok(_) => {}
                Err(error) => refused(stage, "leave running", &error),
            }
        }
    }
}

/// A stream of output: whatever came between, it is whole.
pub(crate) async fn follow(stage: &Stage, ledger: &Ledger) {
    let script = format!("for i in $(seq {LINES}); do echo $i; usleep 5000; done");
    let command = stage
        .client
        .command(ledger.id.as_str(), ["/bin/sh", "-c", &script])
        .reattach(Reattach {
            suspended: Some(ASLEEP),
            ..Reattach::default()
        });
    let followed = async {
        let mut exec = command.exec().await?;
        let (mut out, mut back, mut lost) = (Vec::new(), false, 0);
        while let Some(event) = exec.next().await {
            match event {
                ExecEvent::Stdout(bytes) => out.extend_from_slice(&bytes),
                ExecEvent::Reattached => back = true,
                ExecEvent::Gap { bytes, .. } => lost += bytes,
                _ => {}
            }
        }
        Ok::<(Exit, Vec<u8>, bool, u64), Error>((exec.wait().await?, out, back, lost))
    };
    let epoch = ledger.steady();
    match followed.await {
        Ok((exit, out, back, lost)) if exit.code == 0 => {
            let whole: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
            let told =
                whole.as_bytes().starts_with(&out) && out.len() as u64 + lost == whole.len() as u64;
            if !told {
                let out = String::from_utf8_lossy(&out);
                stage.report.broken(format!(
                    "{}: a stream came as {out:?}, and {lost} bytes are said to be lost",
                    ledger.id
                ));
            } else if lost > 0 {
                // Its compute was ended between its exit and the stream's return.
                stage.report.proved("streams whose loss was told");
            } else if back {
                stage.report.proved("streams that broke, and are whole");
            } else {
                stage.report.proved("streams that are whole");
            }
        }
        Ok((exit, ..)) => {
            if epoch.is_some() && epoch == ledger.steady() {
                stage.report.broken(format!(
                    "{}: nobody ended it, and a command ended with {exit:?}",
                    ledger.id
                ));
            }
            stage.report.did("follow", format!("{:?}", exit.cause));
        }
        Err(error) => refused(stage, "follow", &error),
    }
}
