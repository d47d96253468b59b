//! Who else has containers on the daemon: another gateway, and a record that is gone. Both are named, and
//! left alone.

use std::collections::HashMap;

use anyhow::{Context, ensure};
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, StartContainerOptions,
};
use overwinter_driver_docker::Flavor;
use overwinter_tests::Gateway;
use uuid::Uuid;

use crate::{IMAGE, Stage};

impl Stage {
    /// Makes a container as a gateway would that has this id, and starts it.
    async fn plant(&self, gateway: &str, sandbox: &str) -> anyhow::Result<String> {
        let client = self.daemon.client().await?;
        let name = format!("overwinter-{}", sandbox.replace('-', ""));
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let labels = [
            ("io.overwinter.gateway", gateway),
            ("io.overwinter.sandbox", sandbox),
            ("io.overwinter.incarnation", "1"),
        ];
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            cmd: Some(["sleep", "1000"].map(str::to_owned).to_vec()),
            labels: Some(
                labels
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..ContainerCreateBody::default()
        };
        client.create_container(Some(options), body).await?;
        client
            .start_container(&name, None::<StartContainerOptions>)
            .await?;
        Ok(name)
    }

    async fn labels(&self, native: &str) -> anyhow::Result<HashMap<String, String>> {
        let client = self.daemon.client().await?;
        let found = client
            .inspect_container(native, None::<InspectContainerOptions>)
            .await?;
        let labels = found.config.and_then(|config| config.labels);
        labels.context("it has no labels")
    }

    async fn runs(&self, native: &str) -> anyhow::Result<bool> {
        let client = self.daemon.client().await?;
        let found = client
            .inspect_container(native, None::<InspectContainerOptions>)
            .await?;
        Ok(found.state.and_then(|state| state.running) == Some(true))
    }
}

#[tokio::test]
async fn two_gateways_on_one_daemon_leave_each_other_alone() -> anyhow::Result<()> {
    let Some(mut stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.create("box").await?;
    stage.sh("box", "echo first > /root-file").await?;
    let of_first = stage.containers().await?;

    let second = Gateway::prepare()?;
    let socket = stage.daemon.socket();
    second.set_config(&format!(
        "[docker]\nenabled = true\nsocket = {socket:?}\npull = \"never\"\n"
    ))?;
    let first = std::mem::replace(&mut stage.gateway, second);
    stage.gateway.run().await?;
    // A name is a tenant's of one gateway.
    stage.create("box").await?;
    stage.sh("box", "echo second > /root-file").await?;
    for depth in ["freeze", "stop"] {
        let suspend = ["sandbox", "suspend", "box", "--depth", depth];
        stage.ow(&suspend).await?;
    }
    let second = std::mem::replace(&mut stage.gateway, first);
    ensure!(stage.sh("box", "cat /root-file").await? == "first\n");

    // What the second is rid of, and its end, are its own.
    let first = std::mem::replace(&mut stage.gateway, second);
    stage.ow(&["sandbox", "resume", "box"]).await?;
    ensure!(stage.sh("box", "cat /root-file").await? == "second\n");
    stage.ow(&["sandbox", "delete", "box"]).await?;
    ensure!(stage.containers().await? == of_first);
    let log = std::fs::read_to_string(stage.gateway.log_path())?;
    ensure!(
        log.contains("compute of another gateway; left alone"),
        "{log}"
    );
    let second = std::mem::replace(&mut stage.gateway, first);
    second.end().await?;
    ensure!(stage.sh("box", "cat /root-file").await? == "first\n");
    stage.strike().await
}

/// The name of a sandbox's container, taken by another gateway while there was none.
#[tokio::test]
async fn a_container_of_another_gateway_is_refused_whatever_its_name() -> anyhow::Result<()> {
    let Some(stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.create("box").await?;
    stage.sh("box", "echo kept > /workspace/a").await?;
    stage
        .ow(&["sandbox", "suspend", "box", "--depth", "stop"])
        .await?;
    let native = stage.native("box").await?;
    let sandbox = stage.gateway.client().get("box").await?.id().to_owned();
    stage.daemon.remove(&native).await?;
    let other = Uuid::new_v4().to_string();
    stage.plant(&other, &sandbox).await?;

    let refused = stage.gateway.say(["sandbox", "resume", "box"]).await?;
    refused.refused("START_FAILED", &other)?;
    // Nothing of the sandbox's is there but its workspace.
    stage.ow(&["sandbox", "delete", "box"]).await?;
    ensure!(stage.runs(&native).await?, "it was ended");
    stage.daemon.remove(&native).await?;
    stage.strike().await
}

#[tokio::test]
async fn a_container_that_no_record_owns_is_named_and_left_alone() -> anyhow::Result<()> {
    let Some(mut stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.create("box").await?;
    let native = stage.native("box").await?;
    let gateway = stage.labels(&native).await?["io.overwinter.gateway"].clone();
    let orphan = stage.plant(&gateway, &Uuid::now_v7().to_string()).await?;

    stage.gateway.kill().await?;
    stage.gateway.run().await?;
    stage.sh("box", "true").await?;
    stage
        .ow(&["sandbox", "suspend", "box", "--depth", "freeze"])
        .await?;
    stage.ow(&["sandbox", "delete", "box"]).await?;
    ensure!(stage.runs(&orphan).await?, "it was ended");
    let log = std::fs::read_to_string(stage.gateway.log_path())?;
    let said = log.lines().any(|line| {
        line.contains("compute of this gateway that no record owns") && line.contains(&orphan)
    });
    ensure!(said, "{log}");
    stage.daemon.remove(&orphan).await?;
    stage.strike().await
}
