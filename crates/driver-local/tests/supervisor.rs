//! The real supervisor as PID 1, up to its knock on the socket.

mod common;

use std::fs;
use std::time::Duration;

use common::{Bed, Outcome, cannot_run, credentials, sandbox, supervisor};
use overwinter_driver::{Depth, Driver};
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn it_attaches_after_a_start_and_after_a_restart_of_the_gateway() -> Outcome {
    let (None, Some(binary)) = (cannot_run(), supervisor()) else {
        return Ok(());
    };
    let mut bed = Bed::new("").await?;
    bed.config.init_args = None;
    bed.config.supervisor = binary;
    bed.restart()?;
    let id = sandbox();
    let create = bed.effect(id, 1, 1);
    bed.driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await?;
    assert_eq!(
        knock(&mut bed).await?,
        ("token-1".to_owned(), "1".to_owned())
    );

    bed.restart()?;
    bed.driver.recover(id, Duration::from_secs(1)).await?;
    assert_eq!(
        knock(&mut bed).await?,
        ("token-1".to_owned(), "1".to_owned())
    );

    // PID 1 holds nothing more than it was meant to have.
    let native = create.key.native_name();
    let state = fs::read(bed.state().join("runc").join(native).join("state.json"))?;
    let state: serde_json::Value = serde_json::from_slice(&state)?;
    let status = fs::read_to_string(format!("/proc/{}/status", state["init_process_pid"]))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
            .unwrap_or_default()
    };
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("CapBnd:"), "00000000a80405fb");
    assert_eq!(
        field("Uid:").split_whitespace().next(),
        Some((0x1000_0000 + 65_535).to_string().as_str())
    );

    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Stop)
        .await?;
    bed.driver
        .start(&bed.effect(id, 3, 2), &bed.spec(), &credentials(id, 2))
        .await?;
    assert_eq!(
        knock(&mut bed).await?,
        ("token-2".to_owned(), "2".to_owned())
    );
    bed.driver.delete(&bed.effect(id, 4, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// The (token, incarnation) of the next attach request.
async fn knock(bed: &mut Bed) -> Result<(String, String), Box<dyn std::error::Error>> {
    let wait = Duration::from_secs(10);
    let (_, mut io, _) = tokio::time::timeout(wait, bed.connections.recv())
        .await?
        .ok_or("no connection")?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(tokio::time::timeout(wait, io.read_u8()).await??);
    }
    let request = String::from_utf8(request)?;
    assert!(
        request.starts_with("POST /attach HTTP/1.1\r\n"),
        "{request}"
    );
    let header = |name: &str| {
        request
            .lines()
            .find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
            .unwrap_or_default()
    };
    let token = header("authorization")
        .trim_start_matches("Bearer ")
        .to_owned();
    Ok((token, header("overwinter-incarnation")))
}
