//! Files, through the connection that the gateway has.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use connectrpc::ConnectError;
use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::read_file_response::Message as Read;
use overwinter_api::supervisor::__buffa::oneof::write_file_request::Message as Write;
use support::{Client, Gateway, LONG, reason};

fn parts(start: wire::WriteFileStart, data: &[Bytes], end: bool) -> Vec<wire::WriteFileRequest> {
    let mut parts = vec![Write::from(start)];
    parts.extend(data.iter().cloned().map(Write::Data));
    if end {
        parts.push(Write::from(wire::WriteFileEnd::default()));
    }
    parts
        .into_iter()
        .map(|message| wire::WriteFileRequest {
            message: Some(message),
        })
        .collect()
}

async fn write(
    client: &Client,
    start: wire::WriteFileStart,
    data: &[Bytes],
    end: bool,
) -> Result<wire::FileInfo, ConnectError> {
    let parts = futures::stream::iter(parts(start, data, end));
    let answer = client.write_file(parts).await?;
    Ok(answer.into_owned().info.into_option().unwrap())
}

async fn read(
    client: &Client,
    request: wire::ReadFileRequest,
) -> Result<(wire::FileInfo, Vec<u8>), ConnectError> {
    let mut stream = client.read_file(request).await?;
    let mut info = None;
    let mut content = Vec::new();
    while let Some(part) = tokio::time::timeout(LONG, stream.message::<wire::ReadFileResponse>())
        .await
        .unwrap()?
    {
        match part.to_owned_message().message.unwrap() {
            Read::Info(told) => info = Some(*told),
            Read::Data(data) => content.extend_from_slice(&data),
        }
    }
    Ok((info.unwrap(), content))
}

fn target(path: &[u8]) -> wire::WriteFileStart {
    wire::WriteFileStart {
        path: Bytes::copy_from_slice(path),
        ..Default::default()
    }
}

fn source(path: &[u8]) -> wire::ReadFileRequest {
    wire::ReadFileRequest {
        path: Bytes::copy_from_slice(path),
        ..Default::default()
    }
}

fn litter(folder: &std::path::Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn bytes_go_in_and_out_whole_also_under_a_name_that_is_no_utf8() {
    let (gateway, session) = Gateway::attached().await;
    let name = b"sub/fold\xff\xfeer/file\x80";
    let content: Vec<u8> = (0..3_000_001u32).map(|n| (n % 253) as u8).collect();
    let data: Vec<_> = content
        .chunks(200_000)
        .map(Bytes::copy_from_slice)
        .collect();
    let start = wire::WriteFileStart {
        mode: 0o4750,
        make_parents: true,
        sync: true,
        ..target(name)
    };
    let info = write(&session.client, start, &data, true).await.unwrap();
    assert_eq!((info.size, info.mode), (3_000_001, 0o4750));
    let path = gateway.work().join(std::ffi::OsStr::from_bytes(name));
    assert!(std::fs::read(&path).unwrap() == content);
    assert_eq!(litter(path.parent().unwrap()).len(), 1);

    let (info, read_back) = read(&session.client, source(name)).await.unwrap();
    assert_eq!((info.size, &info.name[..]), (3_000_001, &name[..]));
    assert!(read_back == content);
    let part = wire::ReadFileRequest {
        offset: 2_999_990,
        length: 5,
        ..source(path.as_os_str().as_bytes())
    };
    let (_, tail) = read(&session.client, part).await.unwrap();
    assert_eq!(tail, &content[2_999_990..2_999_995]);

    let listing = wire::ListDirectoryRequest {
        path: Bytes::from_static(b"sub/fold\xff\xfeer"),
        ..Default::default()
    };
    let listing = session.client.list_directory(listing).await.unwrap();
    let listing = listing.into_owned();
    assert_eq!(&listing.entries[0].name[..], b"file\x80");
    assert_eq!(listing.entries[0].kind, wire::FileKind::File);
}

#[tokio::test]
async fn a_broken_upload_leaves_the_old_file_and_no_litter() {
    let (gateway, session) = Gateway::attached().await;
    let path = gateway.work().join("kept");
    std::fs::write(&path, "old").unwrap();

    // Ended without its end message.
    let data = [Bytes::from(vec![1; 300_000])];
    let error = write(&session.client, target(b"kept"), &data, false).await;
    assert_eq!(reason(&error.unwrap_err()), "UPLOAD_BROKEN");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(litter(&gateway.work()), ["kept"]);

    // Abandoned in the middle: the hidden file is there, then gone.
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    for part in parts(target(b"kept"), &data, false) {
        sender.unbounded_send(part).unwrap();
    }
    let client = session.client.clone();
    let upload = tokio::spawn(async move { client.write_file(receiver).await.map(|_| ()) });
    wait_for(|| litter(&gateway.work()).len() == 2).await;
    upload.abort();
    let _ = upload.await;
    drop(sender);
    wait_for(|| litter(&gateway.work()) == ["kept"]).await;
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[tokio::test]
async fn a_link_is_written_through_and_told_as_one() {
    let (gateway, session) = Gateway::attached().await;
    std::fs::create_dir(gateway.work().join("real")).unwrap();
    std::os::unix::fs::symlink("real/file", gateway.work().join("link")).unwrap();
    write(&session.client, target(b"link"), &[Bytes::from("x")], true)
        .await
        .unwrap();
    assert_eq!(
        std::fs::read(gateway.work().join("real/file")).unwrap(),
        b"x"
    );
    let stat = wire::StatFileRequest {
        path: Bytes::from_static(b"link"),
        ..Default::default()
    };
    let info = session.client.stat_file(stat).await.unwrap().into_owned();
    let info = info.info.into_option().unwrap();
    assert_eq!(info.kind, wire::FileKind::Symlink);
    assert_eq!(&info.symlink_target[..], b"real/file");
}

#[tokio::test]
async fn every_refusal_has_its_reason() {
    let (gateway, session) = Gateway::attached().await;
    let client = &session.client;
    let work = gateway.work();
    std::fs::create_dir_all(work.join("full/inner")).unwrap();
    std::fs::write(work.join("file"), "x").unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", work.join("trap")).unwrap();
    // SAFETY: a NUL-terminated path.
    let made = unsafe {
        let path = std::ffi::CString::new(work.join("fifo").as_os_str().as_bytes()).unwrap();
        libc::mkfifo(path.as_ptr(), 0o600)
    };
    assert_eq!(made, 0);

    for (path, expected) in [
        (&b"missing"[..], "FILE_NOT_FOUND"),
        (b"full", "IS_A_DIRECTORY"),
        (b"file/below", "NOT_A_DIRECTORY"),
        (b"", "INVALID_PATH"),
        (b"a\0b", "INVALID_PATH"),
        (b"fifo", "NOT_A_REGULAR_FILE"),
        // What the supervisor itself is made of stays closed, whatever leads there.
        (b"trap", "FILE_PERMISSION_DENIED"),
        (b"/proc/self/mem", "FILE_PERMISSION_DENIED"),
    ] {
        let error = read(client, source(path)).await.unwrap_err();
        assert_eq!(reason(&error), expected, "{path:?}");
    }
    let nobody = wire::ReadFileRequest {
        user: "no-such-user".into(),
        ..source(b"file")
    };
    let error = read(client, nobody).await.unwrap_err();
    assert_eq!(reason(&error), "USER_NOT_FOUND");

    let error = write(client, target(b"full"), &[], true).await.unwrap_err();
    assert_eq!(reason(&error), "IS_A_DIRECTORY");
    let remove = |path: &'static str, recursive| wire::RemoveFileRequest {
        path: path.into(),
        recursive,
        ..Default::default()
    };
    let error = client.remove_file(remove("full", false)).await.unwrap_err();
    assert_eq!(reason(&error), "DIRECTORY_NOT_EMPTY");
    client.remove_file(remove("full", true)).await.unwrap();
    let error = client.remove_file(remove("/", true)).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_BUSY");

    let make = |path: &'static str, parents| wire::MakeDirectoryRequest {
        path: path.into(),
        parents,
        mode: 0o777,
        ..Default::default()
    };
    let error = client.make_directory(make("a/b", false)).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_NOT_FOUND");
    client.make_directory(make("a/b", true)).await.unwrap();
    client.make_directory(make("a/b", true)).await.unwrap();
    let error = client.make_directory(make("a/b", false)).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_EXISTS");
    let mode = std::fs::metadata(work.join("a/b")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o7777, 0o777);
    let rename = wire::RenameFileRequest {
        from: "a/b".into(),
        to: "a/c".into(),
        ..Default::default()
    };
    client.rename_file(rename).await.unwrap();
    assert!(work.join("a/c").is_dir());
}

#[tokio::test]
async fn files_are_touched_with_the_users_own_rights() {
    // SAFETY: takes nothing, returns a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root");
        return;
    }
    let (gateway, session) = Gateway::attached().await;
    let client = &session.client;
    let open = |path: std::path::PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(gateway.folder.path().to_owned(), 0o755);
    std::fs::write(gateway.work().join("secret"), "root's").unwrap();
    open(gateway.work().join("secret"), 0o600);

    let as_user = |path: &[u8]| wire::ReadFileRequest {
        user: "1234".into(),
        ..source(path)
    };
    let error = read(client, as_user(b"secret")).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_PERMISSION_DENIED");
    let upload = || wire::WriteFileStart {
        user: "1234:77".into(),
        ..target(b"mine")
    };
    let error = write(client, upload(), &[], true).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_PERMISSION_DENIED");
    open(gateway.work(), 0o777);
    let info = write(client, upload(), &[], true).await.unwrap();
    assert_eq!((info.uid, info.gid), (1234, 77));

    // A file that the user may not write is not replaced, though its folder would allow it.
    let start = wire::WriteFileStart {
        user: "1234".into(),
        ..target(b"secret")
    };
    let error = write(client, start, &[], true).await.unwrap_err();
    assert_eq!(reason(&error), "FILE_PERMISSION_DENIED");
    // The worker has its own rights back.
    let (_, content) = read(client, source(b"secret")).await.unwrap();
    assert_eq!(content, b"root's");
}

/// For what the other process does in its own time and tells nobody.
async fn wait_for(mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("never so");
}
