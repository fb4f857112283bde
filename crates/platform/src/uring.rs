//! Opens or closes many files with one call.
//!
//! A small file costs open, read and close. The close returns no result worth waiting for, and the
//! names of the next files are known, so a thread hands up to 64 files at a time to io_uring. Without
//! io_uring, each file is closed and opened by itself.
#![allow(unsafe_code)]

use super::{debug, dir, open_files_limit, tricks};
use fullbore_format::entry::{EntryPath, split};
use io_uring::{IoUring, opcode, squeue, types};
use std::{
    collections::VecDeque,
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::OnceLock,
};

/// Files that are handed over at once. A larger number would hold more files open: 64 threads with
/// 64 opened files each, and 64 that wait to be closed, are 8,192.
pub const BATCH: usize = 64;

/// Fewer files are opened one by one.
const LEAST_OPENED: usize = 3;

/// Minimum limit of open files. With a lower limit, files are closed at once.
const ENOUGH_FILES: u64 = 16_384;

/// Files of a thread after which a ring is set up; the setup costs as much as a few dozen calls.
const WORTH_A_RING: usize = BATCH;

/// The waiting closes of one thread. Dropping it closes the rest.
///
/// A close here reports no error. Some file systems report write errors on close: there, files that
/// were written must have been synced before.
#[derive(Debug)]
pub struct FileRing {
    waiting: Vec<RawFd>,
    /// Files so far, without those that wait.
    served: usize,
    ring: Ring,
    /// Whether files can be opened here. Not if they belong to other users, for example.
    opens: bool,
}

/// Files that were opened with one call, by their paths, until they are needed.
#[derive(Debug, Default)]
pub struct OpenedFiles(VecDeque<(EntryPath, OwnedFd)>);

impl OpenedFiles {
    /// Returns whether none is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the file of this path if it is open. Files before it are no longer needed.
    pub fn take(&mut self, path: &[u8]) -> Option<OwnedFd> {
        let index = self.0.iter().position(|(opened, _)| opened == path)?;
        self.0.drain(..=index).next_back().map(|(_, fd)| fd)
    }
}

enum Ring {
    /// Not needed so far.
    Later,
    Ready(Box<IoUring>),
    /// Turned off, or refused by the system.
    Never,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Later => "Later",
            Self::Ready(_) => "Ready",
            Self::Never => "Never",
        })
    }
}

impl Default for FileRing {
    fn default() -> Self {
        Self::new()
    }
}

impl FileRing {
    /// Creates a ring. It uses no system resources before the first 64 files.
    pub fn new() -> Self {
        static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
        let ring = match IS_ALLOWED.get_or_init(|| tricks() && open_files_limit() >= ENOUGH_FILES) {
            true => Ring::Later,
            false => Ring::Never,
        };
        Self {
            waiting: Vec::new(),
            served: 0,
            ring,
            opens: dir::opens_beneath(),
        }
    }

    /// Closes `fd` now or later with others; at most 64 wait.
    pub fn close(&mut self, fd: OwnedFd) {
        if matches!(self.ring, Ring::Never) {
            return drop(fd);
        }
        self.waiting.push(fd.into_raw_fd());
        if self.waiting.len() == BATCH {
            self.flush();
        }
    }

    /// Closes all waiting files before it returns.
    pub fn flush(&mut self) {
        let waiting = self.waiting.len();
        self.served += waiting;
        let mut fds = std::mem::take(&mut self.waiting);
        if waiting > 1
            && let Some(ring) = self.ready()
            && let Err(error) = close_all(ring, &mut fds)
        {
            self.give_up(&error);
        }
        fds.drain(..).for_each(close_one);
        self.waiting = fds;
    }

    /// Opens the files of these paths in `dir`, the directory of all of them, at most 64, as
    /// [`dir::open_at_once`] does. A file that is not in the result must be opened by itself, which
    /// tells why.
    pub fn open_together(&mut self, dir: BorrowedFd<'_>, paths: &[&[u8]]) -> OpenedFiles {
        let names: Vec<&[u8]> = paths.iter().map(|path| split(path).1).collect();
        let opened = self.open_all(dir, &names).into_iter().zip(paths);
        OpenedFiles(
            opened
                .filter_map(|(fd, path)| Some((path.to_vec(), fd?)))
                .collect(),
        )
    }

    fn open_all(&mut self, dir: BorrowedFd<'_>, names: &[&[u8]]) -> Vec<Option<OwnedFd>> {
        let mut opened: Vec<Option<OwnedFd>> = names.iter().map(|_| None).collect();
        if !self.opens || !(LEAST_OPENED..=BATCH).contains(&names.len()) {
            return opened;
        }
        self.served += names.len();
        if let Some(ring) = self.ready()
            && let Err(error) = open_each(ring, dir, names, &mut opened)
        {
            self.give_up(&error);
        } else if matches!(self.ring, Ring::Ready(_)) {
            // Only the owner of a file may open it without a change of its time of access.
            self.opens = opened.iter().any(Option::is_some);
        }
        opened
    }

    /// Returns the ring, if it is worth its setup.
    fn ready(&mut self) -> Option<&mut IoUring> {
        if self.served >= WORTH_A_RING && matches!(self.ring, Ring::Later) {
            self.ring = set_up();
        }
        match &mut self.ring {
            Ring::Ready(ring) => Some(ring),
            _ => None,
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        debug(|| format!("io_uring is refused ({error}), files are opened and closed one by one"));
        self.ring = Ring::Never;
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Sets up a ring. The usual refusals are `ENOSYS` (old kernel), `EPERM` (forbidden by a container
/// or `kernel.io_uring_disabled`) and `ENOMEM` (locked memory, before Linux 5.12).
fn set_up() -> Ring {
    match IoUring::new(BATCH as u32) {
        Ok(ring) => Ring::Ready(Box::new(ring)),
        Err(error) => {
            debug(|| {
                format!("io_uring is refused ({error}), files are opened and closed one by one")
            });
            Ring::Never
        }
    }
}

/// Closes all of `fds` with one call. After an error, `fds` holds those that are still open, and
/// the ring must not be used again.
fn close_all(ring: &mut IoUring, fds: &mut Vec<RawFd>) -> io::Result<()> {
    for fd in &*fds {
        let entry = opcode::Close::new(types::Fd(*fd)).build();
        push(ring, entry.user_data(*fd as u64))?;
    }
    let mut refused = Vec::new();
    let result = wait_for_all(ring, fds.len(), |fd, result| {
        // EINVAL: the kernel does not know the operation (before Linux 5.6). With every other
        // result the file is closed.
        if result == -libc::EINVAL {
            refused.push(fd as RawFd);
        }
    });
    // Files that the kernel has taken are closed, now or soon; the rest is at the end of the queue.
    let taken = fds.len() - ring.submission().len();
    fds.drain(..taken);
    fds.extend(refused);
    if fds.is_empty() {
        result
    } else {
        result.and(Err(io::Error::from_raw_os_error(libc::EINVAL)))
    }
}

/// Opens all files with one call. After an error, the ring must not be used again.
fn open_each(
    ring: &mut IoUring,
    dir: BorrowedFd<'_>,
    names: &[&[u8]],
    opened: &mut [Option<OwnedFd>],
) -> io::Result<()> {
    let (flags, resolve) = dir::at_once_flags();
    let open_how = types::OpenHow::new()
        .flags(flags.bits().into())
        .resolve(resolve.bits());
    let names: Vec<CString> = names
        .iter()
        .map(|name| CString::new(*name))
        .collect::<Result<_, _>>()?;
    for (index, name) in names.iter().enumerate() {
        let dir = types::Fd(dir.as_raw_fd());
        let entry = opcode::OpenAt2::new(dir, name.as_ptr(), &open_how).build();
        push(ring, entry.user_data(index as u64))?;
    }
    wait_for_all(ring, names.len(), |index, result| {
        if result >= 0 {
            // SAFETY: the kernel has just opened it, and nothing else knows of it.
            opened[index as usize] = Some(unsafe { OwnedFd::from_raw_fd(result) });
        }
    })
}

fn push(ring: &mut IoUring, entry: squeue::Entry) -> io::Result<()> {
    // SAFETY: names and flags are read when the entry is handed over, and live until then. It fits,
    // because the ring has the size of a batch and is empty before each.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)
}

/// Hands over the queue and waits for all `count` results.
fn wait_for_all(
    ring: &mut IoUring,
    count: usize,
    mut take: impl FnMut(u64, i32),
) -> io::Result<()> {
    let mut done = 0;
    while done < count {
        // A signal may end the wait early, with or without an error.
        match ring.submit_and_wait(count - done) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for completion in ring.completion() {
            done += 1;
            take(completion.user_data(), completion.result());
        }
    }
    Ok(())
}

fn close_one(fd: RawFd) {
    // SAFETY: `fd` came from an `OwnedFd` and was not closed since. The result is ignored: see
    // [`FileRing`].
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::fd::AsFd};

    /// Opens the files `0` to `count - 1` of a new directory with a ring that is set up, and a link
    /// and a name that does not exist. Returns what was opened.
    fn opened(ring: &mut FileRing, count: usize) -> Vec<Option<OwnedFd>> {
        let dir = tempfile::tempdir().unwrap();
        let mut names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        for name in &names {
            fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("0", dir.path().join("link")).unwrap();
        names.extend(["link".to_owned(), "missing".to_owned()]);
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let root = dir::open_root(dir.path()).unwrap();
        ring.open_all(root.as_fd(), &names)
    }

    #[test]
    fn files_are_opened_together_and_links_are_not_followed() {
        let mut ring = FileRing::new();
        ring.ring = set_up();
        let is_ready = matches!(ring.ring, Ring::Ready(_)) && ring.opens;
        let files = opened(&mut ring, 40);
        for (number, file) in files.iter().enumerate().filter(|_| is_ready) {
            let content = file.as_ref().map(|file| {
                let file = fs::File::from(file.try_clone().unwrap());
                io::read_to_string(file).unwrap()
            });
            let wanted = (number < 40).then(|| number.to_string());
            assert_eq!(content, wanted, "{number}");
        }
        let fds: Vec<RawFd> = files.iter().flatten().map(AsRawFd::as_raw_fd).collect();
        files.into_iter().flatten().for_each(|fd| ring.close(fd));
        ring.flush();
        let is_open = |fd: &RawFd| fs::read_link(format!("/proc/self/fd/{fd}"));
        let left = fds.iter().filter_map(|fd| is_open(fd).ok());
        // Another test may have got the number of one of them.
        let ours = left.filter(|path| path.to_string_lossy().contains("(deleted)"));
        assert_eq!(ours.count(), 0);
    }

    #[test]
    fn without_a_ring_each_file_is_opened_by_itself() {
        let mut ring = FileRing::new();
        ring.ring = Ring::Never;
        assert!(opened(&mut ring, 40).iter().all(Option::is_none));
        assert!(
            opened(&mut FileRing::new(), BATCH)
                .iter()
                .all(Option::is_none)
        );
    }
}
