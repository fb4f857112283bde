//! Who waits for an event, and which answer the event may get.

use fullbore_platform::pre_content::waiting::WaitingCall;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Programs that read files by range: they do not map more than they ask for, and look for no holes.
///
/// All others get a file when it is whole. Copies of holes, mappings that grow, loop devices and clones of a file that is
/// not whole would give zeros, and the kernel asks nobody before them.
#[derive(Debug, Clone, Default)]
pub(super) struct RangeReaders {
    any: bool,
    programs: Vec<(u64, u64)>,
}

impl RangeReaders {
    /// From the paths of programs; `any` stands for all.
    ///
    /// # Errors
    /// The system's, about a program that is not there.
    pub(super) fn new(programs: &[PathBuf]) -> io::Result<Self> {
        let mut readers = Self::default();
        for program in programs {
            if program == Path::new("any") {
                readers.any = true;
            } else {
                let facts = fs::metadata(program)?;
                readers.programs.push((facts.dev(), facts.ino()));
            }
        }
        Ok(readers)
    }

    /// Returns whether a waiting thread runs one of the programs. A thread that is not visible does not.
    pub(super) fn has(&self, thread: i32) -> bool {
        if self.any {
            return true;
        }
        let program = fs::metadata(format!("/proc/{thread}/exe"));
        thread > 0 && program.is_ok_and(|facts| self.programs.contains(&(facts.dev(), facts.ino())))
    }
}

/// Returns whether a thread that waited was killed, so that nobody gets the answer. 0 is a thread that is not visible.
pub(super) fn is_gone(thread: i32) -> bool {
    thread > 0 && fs::symlink_metadata(format!("/proc/{thread}")).is_err()
}

/// Returns whether a thread belongs to a process. A process that was not waited for keeps its number.
pub(super) fn is_thread_of(process: u32, thread: i32) -> bool {
    let path = format!("/proc/{process}/task/{thread}");
    thread > 0 && fs::symlink_metadata(path).is_ok()
}

/// The content that must be there before an access goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessNeed {
    /// These bytes.
    Bytes,
    /// These bytes, on disk: they are changed, and an older version must never be written over the change.
    DurableBytes,
    /// The bytes from here to the end, on disk: they move.
    DurableRest,
    /// The whole file: it may be read in ways that ask nobody.
    Whole,
    /// The whole file, on disk: anything may happen to it.
    DurableWhole,
    /// The limit of the file, lowered to this size: no later fill makes the file longer again.
    Cut(u64),
}

impl AccessNeed {
    /// Returns what the open of a file needs.
    pub(super) fn of_open(is_range_reader: bool, call: WaitingCall) -> Option<Self> {
        match call {
            WaitingCall::Open | WaitingCall::OpenToWrite if is_range_reader => None,
            WaitingCall::Open => Some(Self::Whole),
            _ => Some(Self::DurableWhole),
        }
    }

    /// Returns what an access to a range needs. An access without a length changes the size, or clones the file.
    pub(super) fn of_range(count: u64, is_range_reader: bool, call: WaitingCall) -> Self {
        match call {
            WaitingCall::Resize(size) if is_range_reader => Self::Cut(size),
            WaitingCall::Resize(_) => Self::DurableWhole,
            _ if count == 0 => Self::DurableWhole,
            WaitingCall::Read => Self::Bytes,
            WaitingCall::Write => Self::DurableBytes,
            WaitingCall::Ring if is_range_reader => Self::DurableBytes,
            // It may be a cut or a move, so nothing may be filled behind it later.
            _ => Self::DurableRest,
        }
    }

    /// Returns whether the access may change the content of the file.
    pub(super) fn may_write(self) -> bool {
        !matches!(self, Self::Bytes | Self::Whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_call_is_treated_as_the_worst_that_it_could_be() {
        use AccessNeed::*;
        for (count, is_known, call, need) in [
            (8192, true, WaitingCall::Read, Bytes),
            (8192, true, WaitingCall::Write, DurableBytes),
            (8192, true, WaitingCall::Unknown, DurableRest),
            (8192, true, WaitingCall::Ring, DurableBytes),
            (8192, false, WaitingCall::Ring, DurableRest),
            (4096, true, WaitingCall::Resize(5000), Cut(5000)),
            (8192, true, WaitingCall::Move, DurableRest),
            (0, true, WaitingCall::Resize(0), Cut(0)),
            (4096, false, WaitingCall::Resize(5000), DurableWhole),
            (0, true, WaitingCall::Unknown, DurableWhole),
            (0, true, WaitingCall::Read, DurableWhole),
        ] {
            assert_eq!(
                AccessNeed::of_range(count, is_known, call),
                need,
                "{call:?}"
            );
        }
        for (is_known, call, need) in [
            (true, WaitingCall::Open, None),
            (true, WaitingCall::OpenToWrite, None),
            (true, WaitingCall::OpenEmpty, Some(DurableWhole)),
            (true, WaitingCall::Unknown, Some(DurableWhole)),
            (false, WaitingCall::Open, Some(Whole)),
            (false, WaitingCall::OpenToWrite, Some(DurableWhole)),
            (false, WaitingCall::Unknown, Some(DurableWhole)),
        ] {
            assert_eq!(AccessNeed::of_open(is_known, call), need, "{call:?}");
        }
    }

    #[test]
    fn a_program_is_known_by_its_file() {
        let own = std::env::current_exe().unwrap();
        let thread = std::process::id() as i32;
        assert!(RangeReaders::new(&[own]).unwrap().has(thread));
        assert!(!RangeReaders::new(&["/bin/cat".into()]).unwrap().has(thread));
        assert!(!RangeReaders::default().has(0));
        assert!(RangeReaders::new(&["any".into()]).unwrap().has(0));
        assert!(is_thread_of(std::process::id(), thread));
        assert!(!is_thread_of(1, thread));
    }
}
