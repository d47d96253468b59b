//! `--image host`, as a user meets it: this host's programs, and none of its secrets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use overwinter_tests::Gateway;

use crate::{read, sh};

/// A folder below this host's `/usr/local` with what root alone may read, and what all may.
struct Planted(PathBuf);

impl Planted {
    fn new() -> anyhow::Result<Self> {
        let name = format!("overwinter-test-{}", std::process::id());
        let planted = Self(Path::new("/usr/local").join(name));
        fs::create_dir(&planted.0)?;
        fs::set_permissions(&planted.0, fs::Permissions::from_mode(0o755))?;
        for (name, mode) in [("secret", 0o600), ("open", 0o644)] {
            let path = planted.0.join(name);
            fs::write(&path, "of the host\n")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(planted)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Both, or runc where gVisor is not installed.
pub(crate) fn runtimes() -> anyhow::Result<Vec<&'static str>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join("runsc").is_file()) {
        return Ok(vec!["runc", "runsc"]);
    }
    ensure!(
        std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
        "OVERWINTER_REQUIRE_LOCAL is set, and runsc is not installed"
    );
    eprintln!("SKIPPED on gVisor: needs runsc (make setup)");
    Ok(vec!["runc"])
}

#[tokio::test]
async fn this_hosts_programs_run_and_its_secrets_stay_its_own() -> anyhow::Result<()> {
    let runtimes = runtimes()?;
    let planted = Planted::new()?;
    let (secret, open) = (planted.path("secret"), planted.path("open"));
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    for name in runtimes.iter().copied() {
        let said = gateway
            .say([
                "sandbox",
                "create",
                "--image",
                "host",
                "--runtime",
                name,
                name,
            ])
            .await?;
        said.well()?;
        // Programs of this host, with its libraries and what they need of /etc.
        let ran = sh(
            &client,
            name,
            "set -e; ls /usr/bin > /dev/null; test \"$(id -un)\" = root; cd /root; \
             if command -v python3 > /dev/null; then python3 -c 'import json, ssl, sqlite3; print(len(json.dumps({})))'; else echo 2; fi",
        )
        .await?;
        ensure!(ran == "2\n", "{ran}");
        let hidden = format!(
            "cat {secret}; chmod 644 {secret}; cat {secret}; cp {secret} /tmp/it; mv {secret} /tmp/it; \
             ln {secret} /usr/local/it; cat /tmp/it; cat /usr/local/it; ls -A /home /root /etc/shadow /etc/ssh; true"
        );
        let ran = sh(&client, name, &hidden).await?;
        ensure!(!ran.contains("of the host"), "{ran}");
        ensure!(ran == "/home:\nuser\n\n/root:\n", "{ran:?}");
        let denied = read(&client, name, secret.as_str()).await;
        ensure!(denied.is_err(), "the supervisor reads it: {denied:?}");
        // What is written to /usr is the sandbox's, and is there after a stop.
        let script = format!("echo of the sandbox >> {open}; ln -s {open} /usr/bin/of-the-sandbox");
        sh(&client, name, &script).await?;
        client.suspend(name).wait().await?;
    }

    // A package manager or an administrator changes the host meanwhile.
    fs::write(planted.0.join("new"), "new\n")?;
    for name in runtimes.iter().copied() {
        let resumed = gateway.say(["sandbox", "resume", name]).await?.well()?;
        ensure!(
            resumed.contains("packages of this host have changed"),
            "{resumed}"
        );
        let ran = sh(&client, name, "cat /usr/bin/of-the-sandbox").await?;
        ensure!(ran == "of the host\nof the sandbox\n", "{ran}");
    }
    ensure!(fs::read_to_string(&open)? == "of the host\n");
    ensure!(!Path::new("/usr/bin/of-the-sandbox").is_symlink());
    gateway.end().await
}
