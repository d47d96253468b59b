//! Images: a reference is resolved once, to the id that the daemon has it under, and that is what every
//! container of the sandbox is made from.

use std::collections::HashMap;

use bollard::models::CreateImageInfo;
use overwinter_driver::{ImageProgress, PinnedImage};
use tokio::sync::watch;

use crate::config::{DockerConfig, PullPolicy};
use crate::engine::Engine;
use crate::error::DockerError;
use crate::flavor::Flavor;
use crate::reference::{registry, tagged};
use crate::registry::login;

pub(crate) async fn pin(
    engine: &Engine,
    config: &DockerConfig,
    image: &str,
    progress: &watch::Sender<ImageProgress>,
) -> Result<PinnedImage, DockerError> {
    let found = match config.pull {
        PullPolicy::Always => None,
        PullPolicy::Missing | PullPolicy::Never => engine.image(image).await?,
    };
    let (found, why) = match (found, config.pull) {
        (Some(found), _) => (Some(found), ""),
        (None, PullPolicy::Never) => (
            None,
            "the daemon does not have it, and the configuration says never to fetch",
        ),
        (None, PullPolicy::Always | PullPolicy::Missing) => {
            fetch(engine, config, image, progress).await?;
            let found = engine.image(image).await?;
            (found, "it was fetched, and the daemon does not have it")
        }
    };
    let missing = || DockerError::ImageMissing {
        image: image.to_owned(),
        why: why.to_owned(),
    };
    let found = found.ok_or_else(missing)?;
    let config = found.config.unwrap_or_default();
    let entrypoint = config.entrypoint.into_iter().flatten();
    Ok(PinnedImage {
        image: image.to_owned(),
        digest: found.id.ok_or_else(missing)?,
        main: entrypoint.chain(config.cmd.into_iter().flatten()).collect(),
    })
}

/// What the registry, or the way to it, says is the user's to read, with the credentials that were used.
async fn fetch(
    engine: &Engine,
    config: &DockerConfig,
    image: &str,
    progress: &watch::Sender<ImageProgress>,
) -> Result<(), DockerError> {
    let login = login(config.registry_config.as_deref(), registry(image)).await?;
    let mut layers = Layers::new(engine.flavor());
    let tell = |step| {
        layers.hear(step);
        progress.send_replace(layers.progress());
    };
    let pulled = engine.pull(&tagged(image), login.credentials, tell).await;
    let why = |message: String| format!("{} ({})", message.trim(), login.source);
    match pulled {
        Ok(()) => {
            let ImageProgress { layers, bytes, .. } = layers.progress();
            tracing::info!(image, layers, bytes, "image fetched");
            Ok(())
        }
        Err(DockerError::Answered {
            status: NOT_FOUND,
            message,
        }) => Err(DockerError::ImageMissing {
            image: image.to_owned(),
            why: why(message),
        }),
        Err(DockerError::Answered { message, .. } | DockerError::Lost(message)) => {
            Err(DockerError::Image {
                image: image.to_owned(),
                message: why(message),
            })
        }
        Err(other) => Err(other),
    }
}

const NOT_FOUND: u16 = 404;

/// What was heard of each layer.
struct Layers {
    flavor: Flavor,
    known: HashMap<String, Layer>,
}

#[derive(Default)]
struct Layer {
    done: bool,
    bytes: u64,
}

impl Layers {
    fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            known: HashMap::new(),
        }
    }

    fn hear(&mut self, step: CreateImageInfo) {
        let (Some(id), Some(status)) = (step.id, step.status) else {
            return;
        };
        // Of the whole, with the tag for an id.
        if status.starts_with("Pulling from") {
            return;
        }
        let layer = self.known.entry(id).or_default();
        layer.done |= self.flavor.layer_done().contains(&status.as_str());
        // Later the same numbers count what is unpacked.
        if status == "Downloading" {
            let detail = step.progress_detail.unwrap_or_default();
            let bytes = detail.current.and_then(|it| u64::try_from(it).ok());
            layer.bytes = layer.bytes.max(bytes.unwrap_or(0));
        }
    }

    fn progress(&self) -> ImageProgress {
        let count = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
        ImageProgress {
            layers_done: count(self.known.values().filter(|it| it.done).count()),
            layers: count(self.known.len()),
            bytes: self.known.values().map(|it| it.bytes).sum(),
        }
    }
}
