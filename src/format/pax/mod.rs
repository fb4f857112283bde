//! Members of a tar archive: headers written, headers read.
//!
//! [`write_header`] writes POSIX ustar where that suffices and pax records for just what ustar cannot hold, in the forms
//! that GNU tar, bsdtar and Python's `tarfile` all restore. [`Reader`] reads what it writes, and what those three write.
//! Neither does I/O of its own beyond the byte source that the reader is given, and neither touches content: the caller
//! appends or consumes the bytes of a file and pads them with [`padding`].
//!
//! Rules that come from trials with GNU tar 1.34, bsdtar 3.6.2 and Python 3.11:
//!
//! - Numbers too large for octal are written twice, as a pax record and in base 256, so that a tool without pax reads them too.
//!   Device numbers only in base 256: GNU tar warns for `SCHILY.devmajor`.
//! - Names of owners are bytes in the header block as long as they fit, ASCII or not, for the same reasons as below.
//! - Names over what ustar holds: a pax `path` if they are ASCII, else GNU's `L` and `K` members. A pax value is UTF-8, so
//!   bsdtar refuses (exit 1, symbolic links lost) what is not UTF-8, and in the C locale all that is not ASCII;
//!   `hdrcharset=BINARY` makes GNU tar warn for each member, and bsdtar turn a symbolic link into an empty file. `L` and `K`
//!   are bytes, and all three take them, in any locale.
//! - Times before 1970 with a fraction are written as the decimal they are, which GNU tar and Python read. bsdtar takes
//!   `-1.75` for -1 + 0.75 (and writes it so): it is off by up to two seconds there, and no form suits all.
//! - A sparse map ends with (size, 0), or GNU tar cuts the file at the end of the last run. All runs but the last are whole
//!   blocks, see [`storable_map`], or GNU tar loses data: it pads each run, the others do not.
//! - `=` cannot stand in the key of a record, so in the name of an attribute it is `%3D`, as GNU tar and bsdtar write it.
//!   GNU tar and this reader decode it; bsdtar 3.6.2 restores such an attribute under the encoded name.
//! - Never a `g` header (libarchive is to refuse them), never keys of our own (GNU tar warns for each).

mod acl;
mod attributes;
mod field;
mod header;
mod read;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

pub use acl::NamedAcl;
pub use read::{Member, PaxReader, TarItem, Unknown, begins, skip, skip_padding};
pub use sparse::{MAX_RUNS, storable_map};
pub use write::{is_plain_ustar, write_header};

/// Bytes of a block. Headers are one block, content is padded to whole blocks.
pub const BLOCK: usize = 512;

/// The end of an archive: two blocks of zeros.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Most bytes of pax records before one member, written or read.
///
/// Linux permits 64 KiB an attribute and 64 KiB of names; 16 MiB is 256 attributes of the full size.
pub const MAX_RECORDS: usize = 16 << 20;

/// Most bytes of a name in a GNU `L` or `K` member, written or read; Linux takes 4,096 in one call.
pub const MAX_NAME: usize = 1 << 20;

/// Zeros that follow `len` bytes of content: 0 to 511.
pub const fn padding(len: u64) -> usize {
    ((BLOCK as u64 - len % BLOCK as u64) % BLOCK as u64) as usize
}

/// The raw attributes that hold access control lists, and the records that carry their text.
const ACLS: [(&[u8], &[u8]); 2] = [
    (b"system.posix_acl_access", b"SCHILY.acl.access"),
    (b"system.posix_acl_default", b"SCHILY.acl.default"),
];
/// Prefix of the records of all other attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";
