//! Reading: opened with the user's credentials, then read ahead by one chunk, so that the disk and
//! the socket work at the same time and no worker waits for a slow reader.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use overwinter_api::supervisor::FileInfo;
use tokio::task::JoinHandle;

use super::{FileError, FilePath, c_string, info};
use crate::error::Refusal;

/// Bytes of one message.
const CHUNK_BYTES: usize = 256 << 10;
/// `RESOLVE_NO_MAGICLINKS`: links of /proc that jump to what a process has open.
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Opens `path` for reading, a regular file or a file of /proc or /sys.
pub(crate) fn open(path: &FilePath) -> Result<(File, FileInfo), FileError> {
    let file = open_plain(&path.absolute)?;
    let data = file.metadata()?;
    match data.mode() & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return Err(io::Error::from_raw_os_error(libc::EISDIR).into()),
        // Reading a FIFO or a device may block for ever, or never end.
        _ => return Err(FileError::Kind),
    }
    refuse_own_proc(&file)?;
    advise_sequential(&file, &data);
    let info = info(&path.asked, &data, None);
    Ok((file, info))
}

fn open_plain(path: &Path) -> io::Result<File> {
    let path = c_string(path.as_os_str())?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: open_how is plain data; all fields beside these two are to be zero.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    // A link like /proc/self/fd/3 would be resolved with the supervisor's own descriptors.
    how.resolve = RESOLVE_NO_MAGICLINKS;
    // SAFETY: NUL-terminated path, a record of the size passed; the descriptor is new and ours.
    unsafe {
        let opened = libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        );
        if opened >= 0 {
            return Ok(File::from_raw_fd(opened as i32));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSYS) {
            return Err(error);
        }
        let opened = libc::open(path.as_ptr(), flags);
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(opened))
    }
}

/// Files of /proc about this process: the kernel lets a process read its own memory, whatever the
/// credentials of its thread, and a link that the tenant has left may lead there.
fn refuse_own_proc(file: &File) -> io::Result<()> {
    // SAFETY: plain data, filled by the call.
    let kind = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &raw mut stat) < 0 {
            return Err(io::Error::last_os_error());
        }
        stat.f_type
    };
    if kind != PROC_SUPER_MAGIC {
        return Ok(());
    }
    let refused = || io::Error::from_raw_os_error(libc::EACCES);
    let name =
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| refused())?;
    if name.starts_with(format!("/proc/{}", std::process::id())) {
        return Err(refused());
    }
    Ok(())
}

fn advise_sequential(file: &File, data: &Metadata) {
    if data.size() > CHUNK_BYTES as u64 {
        // Only advice: a file system may ignore it.
        // SAFETY: plain numbers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
    }
}

/// The content of an open file, chunk by chunk.
pub(crate) struct Chunks {
    file: Arc<File>,
    path: FilePath,
    offset: u64,
    remaining: u64,
    ahead: Option<JoinHandle<io::Result<Bytes>>>,
    pool: Arc<Pool>,
}

impl Chunks {
    /// `length` bytes from `offset` on; 0: to the end.
    pub(crate) fn new(file: File, path: FilePath, offset: u64, length: u64) -> Self {
        Self {
            file: Arc::new(file),
            path,
            offset,
            remaining: if length == 0 { u64::MAX } else { length },
            ahead: None,
            pool: Arc::default(),
        }
    }

    /// The next chunk; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Refusal>> {
        let reading = match self.ahead.take() {
            Some(reading) => reading,
            None => self.read()?,
        };
        let read = match reading.await {
            Ok(read) => read,
            Err(_failed) => return Some(Err(Refusal::Worker)),
        };
        match read {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => {
                self.offset += chunk.len() as u64;
                self.remaining -= chunk.len() as u64;
                self.ahead = self.read();
                Some(Ok(chunk))
            }
            Err(error) => {
                self.remaining = 0;
                Some(Err(Refusal::file(&self.path.asked, error)))
            }
        }
    }

    fn read(&self) -> Option<JoinHandle<io::Result<Bytes>>> {
        if self.remaining == 0 {
            return None;
        }
        let wanted = usize::try_from(self.remaining).map_or(CHUNK_BYTES, |n| n.min(CHUNK_BYTES));
        let (file, pool, offset) = (Arc::clone(&self.file), Arc::clone(&self.pool), self.offset);
        Some(tokio::task::spawn_blocking(move || {
            let mut buffer = Buffer::take(pool);
            let mut filled = 0;
            while filled < wanted {
                let at = offset + filled as u64;
                match file.read_at(&mut buffer.bytes[filled..wanted], at) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            buffer.filled = filled;
            Ok(Bytes::from_owner(buffer))
        }))
    }
}

/// Buffers of one transfer, used again once they are sent: fresh ones would cost a page fault for
/// each 4 KiB.
type Pool = Mutex<Vec<Box<[u8]>>>;

struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    fn take(pool: Arc<Pool>) -> Self {
        let free = pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self {
            bytes: free.unwrap_or_else(|| vec![0; CHUNK_BYTES].into_boxed_slice()),
            filled: 0,
            pool,
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.push(bytes);
    }
}
