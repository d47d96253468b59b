//! The agent's file calls, on the tree.

use bytes::Bytes;
use overwinter_api::supervisor as wire;

use super::guest::Guest;
use super::seen::{Looked, Violation};
use super::storage::{Node, NodeKind, Tree, is_within, normal, parent};
use crate::agent::{AgentError, AgentResult, RefusedKind};

pub(super) fn refused(kind: RefusedKind, reason: &str, message: &str) -> AgentError {
    AgentError::Refused {
        kind,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn not_found() -> AgentError {
    refused(RefusedKind::NotFound, "FILE_NOT_FOUND", "no such file")
}

fn not_a_folder() -> AgentError {
    refused(
        RefusedKind::FailedPrecondition,
        "NOT_A_DIRECTORY",
        "not a directory",
    )
}

fn info(name: &[u8], node: &Node) -> wire::FileInfo {
    wire::FileInfo {
        name: Bytes::copy_from_slice(name),
        kind: match node.kind {
            NodeKind::File(_) => wire::FileKind::File.into(),
            NodeKind::Folder => wire::FileKind::Directory.into(),
        },
        size: node.size(),
        mode: node.mode,
        modified_at_ms: node.modified_at_ms,
        ..Default::default()
    }
}

impl Guest {
    /// Changes the tree, if this guest may.
    fn change<T>(&self, change: impl FnOnce(&mut Tree) -> AgentResult<T>) -> AgentResult<T> {
        if self.is_quiesced() {
            return Err(refused(
                RefusedKind::FailedPrecondition,
                "QUIESCED",
                "the sandbox is being suspended: no writes",
            ));
        }
        let mut tree = self.storage.tree();
        // Frozen or ended since the call came: it never gets to write.
        if !self.is_running() {
            return Err(AgentError::Gone);
        }
        let generation = self.generation();
        self.looked_at(Looked::Write);
        if tree.gone || tree.generation != generation {
            let violation = Violation::StaleWrite {
                sandbox: self.sandbox,
                by: generation,
                current: (!tree.gone).then_some(tree.generation),
            };
            drop(tree);
            self.violate(violation);
            return Err(AgentError::Gone);
        }
        change(&mut tree)
    }

    pub(super) fn file(&self, path: &[u8]) -> AgentResult<(wire::FileInfo, Bytes)> {
        let tree = self.storage.tree();
        let node = tree.nodes.get(&normal(path)).ok_or_else(not_found)?;
        match &node.kind {
            NodeKind::File(data) => Ok((info(path, node), data.clone())),
            NodeKind::Folder => Err(refused(
                RefusedKind::FailedPrecondition,
                "NOT_A_REGULAR_FILE",
                "not a regular file",
            )),
        }
    }

    pub(super) fn put(
        &self,
        start: &wire::WriteFileStart,
        data: Bytes,
    ) -> AgentResult<wire::FileInfo> {
        let path = normal(&start.path);
        let modified_at_ms = self.now_ms();
        self.change(|tree| {
            let folder = parent(&path).ok_or_else(not_a_folder)?;
            if start.make_parents {
                make_folders(tree, folder)?;
            }
            check_folder(tree, folder)?;
            if let Some(Node {
                kind: NodeKind::Folder,
                ..
            }) = tree.nodes.get(&path)
            {
                return Err(refused(
                    RefusedKind::FailedPrecondition,
                    "IS_A_DIRECTORY",
                    "is a directory",
                ));
            }
            let node = Node {
                kind: NodeKind::File(data),
                mode: if start.mode == 0 { 0o644 } else { start.mode },
                modified_at_ms,
            };
            let info = info(&start.path, &node);
            tree.nodes.insert(path.clone(), node);
            Ok(info)
        })
    }

    pub(super) fn stat(&self, path: &[u8]) -> AgentResult<wire::FileInfo> {
        let tree = self.storage.tree();
        let node = tree.nodes.get(&normal(path)).ok_or_else(not_found)?;
        Ok(info(path, node))
    }

    pub(super) fn entries(&self, path: &[u8]) -> AgentResult<Vec<wire::FileInfo>> {
        let tree = self.storage.tree();
        let folder = normal(path);
        check_folder(&tree, &folder)?;
        Ok(tree
            .nodes
            .iter()
            .filter(|(path, _)| parent(path) == Some(&folder))
            .map(|(path, node)| {
                let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
                info(name, node)
            })
            .collect())
    }

    pub(super) fn make_folder(&self, request: &wire::MakeDirectoryRequest) -> AgentResult<()> {
        let path = normal(&request.path);
        self.change(|tree| {
            if request.parents {
                return make_folders(tree, &path);
            }
            if tree.nodes.contains_key(&path) {
                return Err(refused(
                    RefusedKind::AlreadyExists,
                    "FILE_EXISTS",
                    "it exists",
                ));
            }
            check_folder(tree, parent(&path).ok_or_else(not_a_folder)?)?;
            let mode = if request.mode == 0 {
                0o755
            } else {
                request.mode
            };
            tree.nodes.insert(path.clone(), Node::folder(mode));
            Ok(())
        })
    }

    pub(super) fn rename(&self, from: &[u8], to: &[u8]) -> AgentResult<()> {
        let (from, to) = (normal(from), normal(to));
        self.change(|tree| {
            if !tree.nodes.contains_key(&from) {
                return Err(not_found());
            }
            if is_within(&to, &from) && to != from {
                return Err(refused(
                    RefusedKind::InvalidArgument,
                    "INVALID_PATH",
                    "into itself",
                ));
            }
            check_folder(tree, parent(&to).ok_or_else(not_a_folder)?)?;
            let moved: Vec<_> = tree
                .nodes
                .extract_if(.., |path, _| is_within(path, &from))
                .collect();
            for (path, node) in moved {
                tree.nodes.insert([&to, &path[from.len()..]].concat(), node);
            }
            Ok(())
        })
    }

    pub(super) fn remove(&self, path: &[u8], recursive: bool) -> AgentResult<()> {
        let path = normal(path);
        self.change(|tree| {
            if !tree.nodes.contains_key(&path) {
                return Err(not_found());
            }
            let within = tree.nodes.keys().filter(|it| is_within(it, &path)).count();
            if within > 1 && !recursive {
                return Err(refused(
                    RefusedKind::FailedPrecondition,
                    "DIRECTORY_NOT_EMPTY",
                    "directory not empty",
                ));
            }
            tree.nodes.retain(|it, _| !is_within(it, &path));
            Ok(())
        })
    }
}

fn check_folder(tree: &Tree, path: &[u8]) -> AgentResult<()> {
    match tree.nodes.get(path).map(|node| &node.kind) {
        Some(NodeKind::Folder) => Ok(()),
        Some(NodeKind::File(_)) => Err(not_a_folder()),
        None => Err(not_found()),
    }
}

fn make_folders(tree: &mut Tree, path: &[u8]) -> AgentResult<()> {
    if let Some(above) = parent(path) {
        make_folders(tree, above)?;
    }
    match tree.nodes.get(path).map(|node| &node.kind) {
        Some(NodeKind::Folder) => Ok(()),
        Some(NodeKind::File(_)) => Err(not_a_folder()),
        None => {
            tree.nodes.insert(path.to_vec(), Node::folder(0o755));
            Ok(())
        }
    }
}
