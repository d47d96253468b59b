//! What survives: a tree of files, and the generation that may write to it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use overwinter_lifecycle::ids::Incarnation;

pub(super) const WORKSPACE: &[u8] = b"/workspace";

#[derive(Debug)]
pub(super) struct Storage(Mutex<Tree>);

#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The incarnation that may write: it rises before any compute runs.
    pub(super) generation: Incarnation,
    /// Deleted: nothing may write any more.
    pub(super) gone: bool,
    /// By absolute path, without a trailing slash; the root is "/".
    pub(super) nodes: BTreeMap<Vec<u8>, Node>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) mode: u32,
    pub(super) modified_at_ms: i64,
}

#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    File(Bytes),
    Folder,
}

impl Node {
    pub(super) const fn folder(mode: u32) -> Self {
        Self {
            kind: NodeKind::Folder,
            mode,
            modified_at_ms: 0,
        }
    }

    pub(super) const fn size(&self) -> u64 {
        match &self.kind {
            NodeKind::File(data) => data.len() as u64,
            NodeKind::Folder => 0,
        }
    }
}

impl Storage {
    pub(super) fn new(generation: Incarnation) -> Self {
        let nodes = BTreeMap::from([
            (b"/".to_vec(), Node::folder(0o755)),
            (WORKSPACE.to_vec(), Node::folder(0o755)),
        ]);
        Self(Mutex::new(Tree {
            generation,
            gone: false,
            nodes,
        }))
    }

    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tree().nodes.values().map(Node::size).sum()
    }

    /// A mode that keeps the workspace alone has ended the compute.
    pub(super) fn lose_root(&self) {
        self.tree()
            .nodes
            .retain(|path, _| path == b"/" || is_within(path, WORKSPACE));
    }
}

/// Whether `path` is `folder` or lies in it.
pub(super) fn is_within(path: &[u8], folder: &[u8]) -> bool {
    folder == b"/"
        || path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Absolute, without `.`, `..` and doubled slashes; relative to the workspace.
pub(super) fn normal(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let relative = !path.starts_with(b"/");
    let base: &[u8] = if relative { WORKSPACE } else { b"" };
    for part in base.split(|&b| b == b'/').chain(path.split(|&b| b == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let mut normal = Vec::with_capacity(path.len() + 1);
    for part in parts {
        normal.push(b'/');
        normal.extend_from_slice(part);
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    normal
}

pub(super) fn parent(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|&b| b == b'/')?;
    match slash {
        0 if path.len() == 1 => None,
        0 => Some(b"/"),
        slash => Some(&path[..slash]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_never_lead_outside() {
        assert_eq!(normal(b"a/./b//c"), b"/workspace/a/b/c");
        assert_eq!(normal(b"/../../etc"), b"/etc");
        assert_eq!(normal(b"../.."), b"/");
        assert_eq!(parent(b"/a/b"), Some(&b"/a"[..]));
        assert_eq!(parent(b"/a"), Some(&b"/"[..]));
        assert_eq!(parent(b"/"), None);
        assert!(is_within(b"/workspace/x", WORKSPACE) && !is_within(b"/workspaces", WORKSPACE));
    }
}
