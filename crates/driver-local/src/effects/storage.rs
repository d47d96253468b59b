//! The folders of a sandbox's storage, as they are made.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use overwinter_driver::ComputeSpec;
use overwinter_lifecycle::ids::SandboxId;

use crate::error::{At, LocalError};
use crate::host::{Host, folder};
use crate::layout::SandboxDir;
use crate::network::Network;

/// Folders of the root layer and the workspace. Ids on disk are plain: 0 is the sandbox's root.
pub(super) fn make_storage(
    host: &Host,
    sandbox: SandboxId,
    base: u32,
    spec: &ComputeSpec,
) -> Result<(), LocalError> {
    let (name, disk) = (&spec.name, spec.resources.disk_bytes);
    let network = Network::parse(&spec.network).unwrap_or(Network::None);
    let resolv = host.networks.resolv_conf(network);
    let dir = host.layout.sandbox(sandbox);
    folder(&dir.root(), 0o700)?;
    if let Some(quota) = &host.quota
        && disk > 0
    {
        // Counted from here on; the range's first id is a number that nobody else has.
        quota.limit(&dir.kept, base, disk)?;
        quota.limit(&dir.root(), base, disk)?;
    }
    // The mode of upper is the mode of `/`.
    let upper = dir.root().join("upper");
    folder(&upper, 0o755)?;
    folder(&dir.root().join("work"), 0o700)?;
    folder(&dir.workspace(), 0o755)?;
    let etc = upper.join("etc");
    folder(&etc, 0o755)?;
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{name}\n"
    );
    for (file, text) in [
        ("hosts", hosts.as_str()),
        ("hostname", &format!("{name}\n")),
        ("resolv.conf", &resolv),
    ] {
        let path = etc.join(file);
        fs::write(&path, text).at("writing", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
            .at("setting the mode of", &path)?;
    }
    for path in [&upper, &etc, &dir.workspace()] {
        chown(path, Some(0), Some(0)).at("giving away", path)?;
    }
    Ok(())
}

/// Has what [`make_storage`] made on the disk: a sandbox whose create was answered is there after a
/// power loss, with storage that can be started on.
pub(super) fn keep_storage(dir: &SandboxDir) -> Result<(), LocalError> {
    let upper = dir.root().join("upper");
    let etc = upper.join("etc");
    let files = ["hosts", "hostname", "resolv.conf"].map(|file| etc.join(file));
    let folders = [
        etc,
        upper,
        dir.root().join("work"),
        dir.root(),
        dir.workspace(),
        dir.kept.clone(),
    ];
    let all = dir.kept.parent().map(Path::to_owned);
    // The first waits for all that was made by then; the others find it there.
    for path in files.into_iter().chain(folders).chain(all) {
        let opened = fs::File::open(&path).at("opening", &path)?;
        opened.sync_all().at("syncing", &path)?;
    }
    Ok(())
}

/// A layer over something, unless it is there.
pub(super) fn make_layer(folder_of_it: &Path) -> Result<(), LocalError> {
    let upper = folder_of_it.join("upper");
    if upper.is_dir() {
        return Ok(());
    }
    folder(folder_of_it, 0o700)?;
    folder(&folder_of_it.join("work"), 0o700)?;
    // Last: it says that all is there. Its mode is that of what it becomes.
    folder(&upper, 0o755)
}
