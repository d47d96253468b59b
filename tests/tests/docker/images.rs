//! Images of a registry of the test's own: who may fetch them, when, what a sandbox is made from when the
//! registry has another by the same name, and how long it may take.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bollard::query_parameters::{ListImagesOptionsBuilder, TagImageOptionsBuilder};
use overwinter_client::Accepted;
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{PASSWORD, Registry, no_registry};
use overwinter_tests::cli::Said;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::{Stage, skips};

impl Stage {
    /// With a registry. None where one of them cannot be run; loud, as [`Stage::set`].
    async fn beside_registry(flavor: Flavor) -> anyhow::Result<Option<(Self, Registry)>> {
        if skips(no_registry())? {
            return Ok(None);
        }
        let Some(stage) = Self::set(flavor).await? else {
            return Ok(None);
        };
        let registry = Registry::start(&stage.folder.join("registry"))?;
        Ok(Some((stage, registry)))
    }

    /// As `docker login` leaves it.
    fn log_in(&self, config: &str) -> anyhow::Result<()> {
        let folder = self.folder.join("login");
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join("config.json"), config)?)
    }

    async fn restart(&mut self, pull: &str, tables: &str) -> anyhow::Result<()> {
        self.gateway.stop().await?;
        self.configure(pull, tables)?;
        self.gateway.run().await
    }

    /// Puts an image with this file into the registry; the daemon does not have it any more.
    async fn publish(&self, registry: &Registry, name: &str, mark: &str) -> anyhow::Result<()> {
        let made = "made:latest";
        self.daemon.import(made, &[("etc/mark", mark)]).await?;
        let client = self.daemon.client().await?;
        registry.push(&client, made, name).await?;
        for name in [made, &registry.name(name)] {
            self.daemon.forget(name).await?;
        }
        Ok(())
    }

    async fn create_of(&self, name: &str, image: &str) -> anyhow::Result<Said> {
        let driver = self.flavor.name();
        let create = [
            "sandbox", "create", name, "--driver", driver, "--image", image,
        ];
        self.gateway.say(create).await
    }

    /// What the image that the sandbox was made from is marked with.
    async fn mark(&self, name: &str) -> anyhow::Result<String> {
        self.sh(name, "cat /etc/mark").await
    }
}

#[tokio::test]
async fn a_docker_image_is_fetched_with_the_users_login() -> anyhow::Result<()> {
    logins(Flavor::Docker).await
}

#[tokio::test]
async fn a_podman_image_is_fetched_with_the_users_login() -> anyhow::Result<()> {
    logins(Flavor::Podman).await
}

async fn logins(flavor: Flavor) -> anyhow::Result<()> {
    let Some((mut stage, mut registry)) = Stage::beside_registry(flavor).await? else {
        return Ok(());
    };
    stage.restart("missing", "").await?;
    for tag in ["app:latest", "app:1"] {
        stage.publish(&registry, tag, tag).await?;
    }
    let (image, bare) = (registry.name("app:1"), registry.name("app"));

    // Each is refused for a reason of its own, and leaves the name free.
    let refused = stage.create_of("one", &image).await?;
    refused.refused("IMAGE_UNUSABLE", "no credentials")?;
    stage.log_in(&registry.login("not the password"))?;
    let refused = stage.create_of("one", &image).await?;
    refused.refused("IMAGE_UNUSABLE", "with the credentials of")?;
    ensure!(
        refused.err.contains("unauthorized") || refused.err.contains("authentication required"),
        "{refused:?}"
    );
    ensure!(!refused.err.contains("not the password"), "{refused:?}");
    stage.log_in("{\"auths\": ")?;
    let refused = stage.create_of("one", &image).await?;
    refused.refused("IMAGE_UNUSABLE", "registry credentials: ")?;
    stage.log_in(&registry.login(PASSWORD))?;
    let refused = stage.create_of("one", &registry.name("app:none")).await?;
    refused.refused("IMAGE_UNUSABLE", "manifest unknown")?;
    registry.end()?;
    let refused = stage.create_of("one", &image).await?;
    refused.refused("IMAGE_UNUSABLE", "connection refused")?;
    registry.start_again()?;

    stage.create_of("one", &image).await?.well()?;
    ensure!(stage.mark("one").await? == "app:1");
    // A name alone is its latest, and none of the others.
    stage.ow(&["sandbox", "delete", "one"]).await?;
    stage.daemon.forget(&image).await?;
    stage.create_of("one", &bare).await?.well()?;
    ensure!(stage.mark("one").await? == "app:latest");
    let client = stage.daemon.client().await?;
    let all = ListImagesOptionsBuilder::default().all(true).build();
    let images = client.list_images(Some(all)).await?;
    let tags: Vec<_> = images.iter().flat_map(|it| &it.repo_tags).collect();
    ensure!(!tags.contains(&&image), "{tags:?}");

    // By content.
    let digests: Vec<_> = images.into_iter().flat_map(|it| it.repo_digests).collect();
    let digest = digests.into_iter().find(|it| it.starts_with(&bare));
    let digest = digest.context("no digest")?;
    stage.create_of("two", &digest).await?.well()?;
    ensure!(stage.mark("two").await? == "app:latest");
    stage.strike().await
}

#[tokio::test]
async fn a_helper_that_the_login_names_is_asked() -> anyhow::Result<()> {
    let Some((mut stage, registry)) = Stage::beside_registry(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.publish(&registry, "app:1", "helped").await?;
    let bin = stage.folder.join("bin");
    fs::create_dir(&bin)?;
    let host = registry.name("");
    let host = host.trim_end_matches('/');
    let helper = |name: &str, script: String| -> anyhow::Result<()> {
        let path = bin.join(format!("docker-credential-{name}"));
        fs::write(&path, format!("#!/bin/sh\n{script}"))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        Ok(fs::set_permissions(path, mode)?)
    };
    helper(
        "good",
        format!(
            "test \"$1\" = get && test \"$(cat)\" = {host} || exit 1\n\
             echo '{{\"ServerURL\":\"{host}\",\"Username\":\"winter\",\"Secret\":\"{PASSWORD}\"}}'\n"
        ),
    )?;
    helper(
        "none",
        "echo credentials not found in native keychain; exit 1\n".to_owned(),
    )?;
    helper(
        "bad",
        "echo the keychain is locked >&2; exit 1\n".to_owned(),
    )?;
    let path = std::env::var("PATH").unwrap_or_default();
    stage
        .gateway
        .set_env("PATH", format!("{}:{path}", bin.display()));
    stage.restart("missing", "").await?;

    let image = registry.name("app:1");
    for (config, words) in [
        (r#"{"credsStore": "none"}"#, "no credentials for it"),
        (
            r#"{"credsStore": "bad"}"#,
            "docker-credential-bad: it failed: the keychain is locked",
        ),
        (
            r#"{"credsStore": "not-there"}"#,
            "docker-credential-not-there: No such file",
        ),
        (
            r#"{"credsStore": "../bin/good"}"#,
            "not the name of a helper",
        ),
    ] {
        stage.log_in(config)?;
        let refused = stage.create_of("one", &image).await?;
        refused.refused("IMAGE_UNUSABLE", words)?;
    }
    // What is named for one registry goes before what is for all.
    let config = format!(r#"{{"credsStore": "bad", "credHelpers": {{"{host}": "good"}}}}"#);
    stage.log_in(&config)?;
    stage.create_of("one", &image).await?.well()?;
    ensure!(stage.mark("one").await? == "helped");
    stage.strike().await
}

#[tokio::test]
async fn a_docker_sandbox_keeps_its_image_when_the_tag_moves() -> anyhow::Result<()> {
    tag_moves(Flavor::Docker).await
}

#[tokio::test]
async fn a_podman_sandbox_keeps_its_image_when_the_tag_moves() -> anyhow::Result<()> {
    tag_moves(Flavor::Podman).await
}

async fn tag_moves(flavor: Flavor) -> anyhow::Result<()> {
    let Some((mut stage, registry)) = Stage::beside_registry(flavor).await? else {
        return Ok(());
    };
    stage.log_in(&registry.login(PASSWORD))?;
    stage.publish(&registry, "app:1", "old").await?;
    stage.restart("missing", "").await?;
    let image = registry.name("app:1");
    stage.create_of("one", &image).await?.well()?;
    let digest = |got: &str| {
        let at = got.find("sha256:").unwrap_or(0);
        got[at..].split_whitespace().next().unwrap_or("").to_owned()
    };
    let before = digest(&stage.ow(&["sandbox", "get", "one"]).await?);
    ensure!(before.len() == 71, "{before}");

    // In the registry it is another now; the daemon still has the old one by the name.
    let client = stage.daemon.client().await?;
    let as_kept = TagImageOptionsBuilder::default().repo("kept").tag("latest");
    client.tag_image(&image, Some(as_kept.build())).await?;
    stage.publish(&registry, "app:1", "new").await?;
    let (repo, tag) = image.rsplit_once(':').context("no tag")?;
    let as_before = TagImageOptionsBuilder::default().repo(repo).tag(tag);
    let kept = "kept:latest";
    client.tag_image(kept, Some(as_before.build())).await?;
    stage.create_of("two", &image).await?.well()?;
    ensure!(stage.mark("two").await? == "old", "missing: fetched");

    stage.restart("always", "").await?;
    stage.create_of("three", &image).await?.well()?;
    ensure!(stage.mark("three").await? == "new", "always: not fetched");

    // Its container is kept, or made anew of what it was made from.
    for remove in [false, true] {
        let suspend = ["sandbox", "suspend", "one", "--depth", "stop"];
        stage.ow(&suspend).await?;
        if remove {
            let id = stage
                .gateway
                .client()
                .get("one")
                .await?
                .id()
                .replace('-', "");
            stage.daemon.remove(&format!("overwinter-{id}")).await?;
        }
        let wake = if remove { "start" } else { "resume" };
        stage.ow(&["sandbox", wake, "one"]).await?;
        ensure!(stage.mark("one").await? == "old", "it has changed");
        let now = digest(&stage.ow(&["sandbox", "get", "one"]).await?);
        ensure!(now == before, "{now}");
    }

    stage.restart("never", "").await?;
    let refused = stage.create_of("four", &registry.name("app:2")).await?;
    refused.refused("IMAGE_UNUSABLE", "never to fetch")?;
    stage.create_of("four", &image).await?.well()?;
    ensure!(stage.mark("four").await? == "new");
    stage.strike().await
}

/// How fast the way to the registry is, in bytes a second; 0: nothing comes any more.
type Pace = watch::Receiver<u64>;

/// A way to the registry. Answers with its port.
async fn slow_way(to: u16, pace: Pace) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(carry(near, to, pace.clone()));
        }
    });
    Ok(port)
}

async fn carry(near: TcpStream, to: u16, mut pace: Pace) -> anyhow::Result<()> {
    let far = TcpStream::connect(("127.0.0.1", to)).await?;
    let (mut from_client, mut to_client) = near.into_split();
    let (mut from_registry, mut to_registry) = far.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_registry).await });
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = from_registry.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        let rate = *pace.wait_for(|it| *it > 0).await?;
        tokio::time::sleep(Duration::from_secs_f64(read as f64 / rate as f64)).await;
        to_client.write_all(&chunk[..read]).await?;
    }
}

/// Of what no compression makes less.
fn noise(bytes: usize) -> String {
    let mut state = Instant::now().elapsed().as_nanos() as u64 | std::process::id() as u64 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b' ' + (state % 95) as u8)
    };
    (0..bytes).map(|_| next()).collect()
}

fn id_of(accepted: &Accepted) -> anyhow::Result<String> {
    let operation = accepted.operation().context("no operation")?;
    Ok(operation.id().to_owned())
}

#[tokio::test]
async fn an_image_may_take_its_time_as_long_as_it_comes() -> anyhow::Result<()> {
    const EFFECT: Duration = Duration::from_secs(5);
    let Some((mut stage, registry)) = Stage::beside_registry(Flavor::Docker).await? else {
        return Ok(());
    };
    let (set, pace) = watch::channel(350_000);
    let way = slow_way(registry.port(), pace).await?;
    let login = registry.login(PASSWORD);
    stage.log_in(&login.replace(&registry.port().to_string(), &way.to_string()))?;
    for tag in ["slow:1", "slow:2", "slow:3"] {
        stage
            .publish(&registry, tag, &format!("{tag}{}", noise(4 << 20)))
            .await?;
    }
    let deadlines = format!("[deadlines]\neffect_ms = {}\n", EFFECT.as_millis());
    stage.restart("missing", &deadlines).await?;
    let client = stage.gateway.client();
    let create = |name: &'static str, tag: &str| {
        let image = format!("127.0.0.1:{way}/{tag}");
        client
            .create()
            .name(name)
            .driver("docker")
            .image(image)
            .accept()
    };

    // Longer than a call of the driver may take, and than the whole operation.
    let began = Instant::now();
    let accepted = create("one", "slow:1").await?;
    let id = id_of(&accepted)?;
    let mut seen = Vec::new();
    let ended = loop {
        let now = client.operation(&id).await?;
        if now.raw().outcome.is_set() {
            break now;
        }
        let progress = now.raw().progress.clone();
        if !progress.is_empty() && seen.last() != Some(&progress) {
            seen.push(progress);
        }
        ensure!(began.elapsed() < Duration::from_secs(90), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    ended
        .achieved()
        .map_err(|it| anyhow::anyhow!("{it} {seen:?}"))?;
    ensure!(began.elapsed() > 2 * EFFECT, "{:?}", began.elapsed());
    ensure!(
        seen.len() > 3 && seen[1].contains(" MB fetched"),
        "{seen:?}"
    );
    ensure!(ended.raw().progress.is_empty(), "{ended:?}");
    ensure!(stage.sh("one", "head -c 6 /etc/mark").await? == "slow:1");

    // Until nothing comes.
    let started = |id: String| {
        let client = client.clone();
        async move {
            while client.operation(&id).await?.raw().progress.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        }
    };
    let accepted = create("two", "slow:2").await?;
    let id = id_of(&accepted)?;
    tokio::time::timeout(Duration::from_secs(30), started(id.clone())).await??;
    set.send_replace(0);
    let ended = client
        .wait_operation(&id, Some(Duration::from_secs(60)))
        .await?;
    let why = ended.achieved().unwrap_err();
    ensure!(why.reason() == "IMAGE_UNUSABLE", "{why}");
    ensure!(
        why.to_string().contains("nothing more of the image came"),
        "{why}"
    );

    // Or until it is not wanted any more. The name is free again after both.
    set.send_replace(350_000);
    let accepted = create("two", "slow:3").await?;
    let id = id_of(&accepted)?;
    tokio::time::timeout(Duration::from_secs(30), started(id.clone())).await??;
    // From here on nothing comes: who waited for the fetching would see it fail.
    set.send_replace(0);
    client.delete("two").wait().await?;
    let why = client.operation(&id).await?.achieved().unwrap_err();
    ensure!(why.reason() != "IMAGE_UNUSABLE", "{why}");
    stage.create("two").await?;
    stage.strike().await
}
