//! An image from what the host has: busybox, static, in a folder.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// A root folder with busybox and its applets.
pub struct Image {
    pub root: PathBuf,
}

impl Image {
    /// # Errors
    /// When there is no static busybox on this host.
    pub fn busybox(folder: &Path) -> anyhow::Result<Self> {
        let root = folder.join("busybox");
        let bin = root.join("bin");
        for made in [
            "bin",
            "etc",
            "proc",
            "sys",
            "dev",
            "tmp",
            "run",
            "workspace",
            "root",
        ] {
            std::fs::create_dir_all(root.join(made))?;
        }
        std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))?;
        let source = Path::new("/bin/busybox");
        ensure!(
            source.exists(),
            "busybox-static is not installed (make setup installs it)"
        );
        std::fs::copy(source, bin.join("busybox"))?;
        let list = std::process::Command::new(source).arg("--list").output()?;
        for applet in String::from_utf8(list.stdout)?
            .lines()
            .filter(|name| *name != "busybox")
        {
            symlink("busybox", bin.join(applet)).with_context(|| applet.to_owned())?;
        }
        std::fs::write(
            root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n",
        )?;
        std::fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
        Ok(Self { root })
    }

    #[must_use]
    pub fn name(&self) -> String {
        self.root.display().to_string()
    }
}
