//! Images: a reference is resolved once, to the id that the daemon has it under, and that is what every
//! container of the sandbox is made from.

use overwinter_driver::PinnedImage;

use crate::config::PullPolicy;
use crate::engine::Engine;
use crate::error::DockerError;

pub(crate) async fn pin(
    engine: &Engine,
    policy: PullPolicy,
    image: &str,
) -> Result<PinnedImage, DockerError> {
    let found = match policy {
        PullPolicy::Always => None,
        PullPolicy::Missing | PullPolicy::Never => engine.image(image).await?,
    };
    let found = match (found, policy) {
        (Some(found), _) => Some(found),
        (None, PullPolicy::Never) => None,
        (None, PullPolicy::Always | PullPolicy::Missing) => {
            fetch(engine, image).await?;
            engine.image(image).await?
        }
    };
    let missing = || DockerError::ImageMissing {
        image: image.to_owned(),
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

/// What the registry, or the way to it, says is the user's to read.
async fn fetch(engine: &Engine, image: &str) -> Result<(), DockerError> {
    match engine.pull(image).await {
        Err(DockerError::Answered {
            status: NOT_FOUND, ..
        }) => Err(DockerError::ImageMissing {
            image: image.to_owned(),
        }),
        Err(DockerError::Answered { message, .. } | DockerError::Lost(message)) => {
            Err(DockerError::Image {
                image: image.to_owned(),
                message,
            })
        }
        other => other,
    }
}

const NOT_FOUND: u16 = 404;
