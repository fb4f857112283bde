//! Reads of a known length, for which a file that ends earlier is an error.

use super::read::{PageCacheUse, read_full};
use std::{io, os::fd::AsFd};

/// Replaces the content of `buffer` by `len` bytes at `offset` of the file.
///
/// The space is not zeroed first: in an unoptimized program that took 13 % of a restore.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file ends earlier, or the system's.
pub fn read_exactly(
    fd: impl AsFd,
    offset: u64,
    len: usize,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    buffer.clear();
    let got = read_full(fd, buffer, offset, len, PageCacheUse::Keep)?;
    if got < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
