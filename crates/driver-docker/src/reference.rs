//! The parts of an image's name, as Docker reads them.

/// Docker Hub, as its credentials are filed.
pub(crate) const HUB: &str = "https://index.docker.io/v1/";

/// What its registry is filed under: a host with its port, or [`HUB`].
pub(crate) fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some(("docker.io" | "index.docker.io", _)) | None => HUB,
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        Some(_) => HUB,
    }
}

/// With the tag `latest` where it has neither tag nor digest: a daemon fetches all tags of a bare name.
pub(crate) fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_told_from_a_folder_of_the_hub() {
        for (image, expected) in [
            ("debian", HUB),
            ("debian:12", HUB),
            ("library/debian", HUB),
            ("docker.io/library/debian", HUB),
            ("localhost/a", "localhost"),
            ("localhost:5000/a/b:c", "localhost:5000"),
            ("127.0.0.1:5000/a@sha256:00", "127.0.0.1:5000"),
            ("quay.io/a/b", "quay.io"),
        ] {
            assert_eq!(registry(image), expected, "{image}");
        }
    }

    #[test]
    fn a_bare_name_is_its_latest() {
        for (image, expected) in [
            ("debian", "debian:latest"),
            ("debian:12", "debian:12"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("localhost:5000/a:1", "localhost:5000/a:1"),
            ("quay.io/a@sha256:00", "quay.io/a@sha256:00"),
        ] {
            assert_eq!(tagged(image), expected);
        }
    }
}
