//! `overwinter sandbox create`

use std::path::Path;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use overwinter_client::SandboxRef;
use overwinter_client::raw::OperationKind as Kind;

use super::verbs::waited;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs};
use crate::progress;
use crate::text::{parse_cpus, parse_pair, parse_size};

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Its name, a DNS label; without one, one is made up
    // An empty one is a variable that was not set: nobody asks for a made-up name that way.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// The driver; without it the gateway's default
    #[arg(long)]
    driver: Option<String>,
    /// A folder, a rootfs tar, or a name that the driver knows: `host` is made of this host's /usr
    #[arg(long)]
    image: Option<String>,
    /// A variable of every process inside; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// A label to find it by; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// How many CPUs it gets, like 0.5; without it no limit
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// How much memory it gets, like 512M; without it no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// How many processes and threads it gets
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// How much disk it gets; refused where the filesystem has no quotas
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk: Option<u64>,
    /// What it reaches: none, internet or host; without it none
    #[arg(long, value_name = "KIND")]
    network: Option<String>,
    /// What runs it, like runsc (gVisor); without it the driver's default
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// Answer as soon as it is accepted
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// The main process, started anew at each cold start
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Create) -> Result<u8, Failure> {
    let client = &context.client;
    let sandbox = args.name.clone().map(SandboxRef::from);
    let mut create = client.create();
    if let Some(name) = args.name {
        create = create.name(name);
    }
    if let Some(driver) = args.driver {
        create = create.driver(driver);
    }
    if let Some(image) = args.image {
        create = create.image(image_of(image)?);
    }
    for (key, value) in args.env {
        create = create.env(key, value);
    }
    for (key, value) in args.label {
        create = create.label(key, value);
    }
    if let Some(millis) = args.cpus {
        create = create.cpu_millis(millis);
    }
    if let Some(bytes) = args.memory {
        create = create.memory_bytes(bytes);
    }
    if let Some(pids) = args.pids {
        create = create.pids(pids);
    }
    if let Some(bytes) = args.disk {
        create = create.disk_bytes(bytes);
    }
    if let Some(network) = args.network {
        create = create.network(network);
    }
    if let Some(runtime) = args.runtime {
        create = create.runtime(runtime);
    }
    if !args.command.is_empty() {
        create = create.main(args.command);
    }
    let made = if args.no_wait {
        create.accept().await?.sandbox()
    } else {
        let wait = waited(client, sandbox.as_ref(), Kind::Create, create.wait());
        progress::waiting(client, "creating", sandbox.as_ref(), wait)
            .await?
            .sandbox
    };
    let mut out = Output::new();
    match args.output.output {
        Format::Json => out.json(&made)?,
        // For scripts and people alike: how it is to be called from here on.
        Format::Table | Format::Name => out.line(made.name())?,
    }
    out.finish()?;
    Ok(0)
}

/// A path that is relative to here means nothing to the gateway, which runs elsewhere. What could be
/// a name that the driver knows is a path only where it looks like one and something lies there.
fn image_of(image: String) -> Result<String, Failure> {
    let explicit = image.starts_with("./") || image.starts_with("../") || image == ".";
    let looks_like_one = image.contains('/')
        || [".tar", ".tar.gz", ".tgz"]
            .iter()
            .any(|end| image.ends_with(end));
    let is_path = explicit || (looks_like_one && Path::new(&image).exists());
    if !is_path {
        return Ok(image);
    }
    let absolute = std::path::absolute(&image)
        .map_err(|error| Failure::local(format!("the image {image}"), error))?;
    Ok(absolute.to_string_lossy().into_owned())
}
