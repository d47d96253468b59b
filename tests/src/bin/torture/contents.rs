//! Files: what was acknowledged is there.

use overwinter_client::{Code, Error};
use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::ledger::{Contents, Drawer, Ledger, digest};
use crate::stage::Stage;

/// Of one client in one sandbox; few, so that each is written again and again.
const FILES: usize = 5;
const LARGEST: usize = 1 << 20;

/// A name of the client's own, in the workspace or in the root layer.
fn path(client: usize, file: usize) -> String {
    let folder = if file.is_multiple_of(2) {
        "workspace"
    } else {
        "root"
    };
    format!("/{folder}/client-{client}/{file}")
}

fn some(client: usize, chance: &mut StdRng) -> String {
    path(client, chance.random_range(0..FILES))
}

pub(crate) async fn write(stage: &Stage, ledger: &Ledger, client: usize, chance: &mut StdRng) {
    let path = some(client, chance);
    let size = match chance.random_range(0..20) {
        0 => chance.random_range(0..LARGEST),
        1 => 0,
        _ => chance.random_range(1..32 << 10),
    };
    let mut bytes = vec![0; size];
    chance.fill(&mut bytes[..]);
    let contents = Some(digest(&bytes));
    let mut drawer = ledger.drawers[client].lock().await;
    let versions = drawer.files.entry(path.clone()).or_default();
    versions.send(contents);
    let files = stage.client.files(ledger.id.as_str());
    let written = files.write(path).make_parents(true).sync(chance.random());
    match written.bytes(bytes).await {
        Ok(_) => {
            versions.acknowledge(contents);
            stage.report.did("write", "acknowledged");
        }
        Err(error) => refused(stage, ledger, "write", &error),
    }
}

pub(crate) async fn remove(stage: &Stage, ledger: &Ledger, client: usize, chance: &mut StdRng) {
    let path = some(client, chance);
    let mut drawer = ledger.drawers[client].lock().await;
    let Some(versions) = drawer.files.get_mut(&path) else {
        return;
    };
    versions.send(None);
    let files = stage.client.files(ledger.id.as_str());
    match files.remove(path, false).await {
        Ok(()) => {
            versions.acknowledge(None);
            stage.report.did("remove", "acknowledged");
        }
        Err(error) => refused(stage, ledger, "remove", &error),
    }
}

/// Reads its files back, until one cannot be read.
pub(crate) async fn read(stage: &Stage, ledger: &Ledger, client: usize) {
    let drawer = ledger.drawers[client].lock().await;
    for path in drawer.files.keys() {
        if !compare(stage, ledger, &drawer, path).await {
            return;
        }
    }
}

/// Reads all files of all clients back. Answers whether each could be read.
pub(crate) async fn read_all(stage: &Stage, ledger: &Ledger) -> bool {
    let mut all = true;
    for drawer in &ledger.drawers {
        let drawer = drawer.lock().await;
        for path in drawer.files.keys() {
            all &= compare(stage, ledger, &drawer, path).await;
        }
    }
    all
}

/// Answers whether it could be read.
async fn compare(stage: &Stage, ledger: &Ledger, drawer: &Drawer, path: &str) -> bool {
    let Some(versions) = drawer.files.get(path) else {
        return true;
    };
    let found = match fetch(stage, ledger, path).await {
        Ok(found) => found,
        Err(error) => {
            refused(stage, ledger, "read", &error);
            return false;
        }
    };
    if !versions.may_be(found) {
        stage.report.broken(format!(
            "{} {path} holds {}, and what was promised is {versions:?}",
            ledger.id,
            found.map_or("nothing".to_owned(), |found| format!("{found:02x?}"))
        ));
    } else if versions.is_certain() {
        stage.report.proved("files as acknowledged");
    } else {
        stage.report.proved("files as acknowledged or sent since");
    }
    true
}

async fn fetch(stage: &Stage, ledger: &Ledger, path: &str) -> Result<Contents, Error> {
    let files = stage.client.files(ledger.id.as_str());
    let mut bytes = Vec::new();
    let read = match files.read(path).await {
        Ok(mut file) => file.copy_to(&mut bytes).await,
        Err(error) => Err(error),
    };
    match read {
        Ok(_) => Ok(Some(digest(&bytes))),
        Err(error) if error.reason() == "FILE_NOT_FOUND" => Ok(None),
        Err(error) => Err(error),
    }
}

fn refused(stage: &Stage, ledger: &Ledger, what: &'static str, error: &Error) {
    stage.judge(what, error);
    stage.report.did(what, error.reason().to_owned());
    let gone = error.code() == Code::NotFound && error.reason() != "FILE_NOT_FOUND";
    if gone && !ledger.is_deleted() {
        let id = &ledger.id;
        stage
            .report
            .broken(format!("{what}: {id} is not found: {error}"));
    }
}
