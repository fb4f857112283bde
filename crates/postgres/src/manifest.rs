//! Writes PostgreSQL's own `backup_manifest`, byte for byte like the server, for `pg_verifybackup`
//! and `pg_combinebackup`.
//!
//! Version 1 up to PostgreSQL 16, version 2 from 17 on. Files are listed in the order of
//! [`Manifest::add`]; WAL and the manifest itself are not listed. Lines go to a temporary file
//! without a name, so millions of files cost no memory.

use fullbore_format::{
    digest::hex,
    error::{Error, Result},
};
use fullbore_platform::write::anonymous_file;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{BufWriter, Write},
};

/// A manifest under construction.
pub struct Manifest {
    file: BufWriter<File>,
    digest: Sha256,
    bytes: u64,
    /// Separator before the next line: a comma, except before the first.
    between: &'static str,
}

/// The WAL of one timeline that recovery needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalRange {
    pub timeline: u32,
    pub start_lsn: u64,
    /// End of the range; the byte at this location is not needed.
    pub end_lsn: u64,
}

/// A complete manifest.
#[derive(Debug)]
pub struct Finished {
    /// Its content, from offset 0; read it at offsets.
    pub file: File,
    /// Length of the content.
    pub bytes: u64,
}

impl Manifest {
    /// Begins the manifest of a cluster of major version `major`.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be made or written.
    pub fn new(major: u32, system_identifier: u64) -> Result<Self> {
        let file = anonymous_file(&std::env::temp_dir()).map_err(failed)?;
        let mut manifest = Self {
            file: BufWriter::with_capacity(64 << 10, file),
            digest: Sha256::new(),
            bytes: 0,
            between: "\n",
        };
        let version = if major < 17 { 1 } else { 2 };
        manifest.put(&format!(
            "{{ \"PostgreSQL-Backup-Manifest-Version\": {version},\n"
        ))?;
        if version > 1 {
            manifest.put(&format!("\"System-Identifier\": {system_identifier},\n"))?;
        }
        manifest.put("\"Files\": [")?;
        Ok(manifest)
    }

    /// Lists the file `path`, relative to the data directory, of `size` bytes; its checksum may be
    /// unknown.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be written.
    pub fn add(
        &mut self,
        path: &[u8],
        size: u64,
        mtime_seconds: i64,
        crc32c: Option<u32>,
    ) -> Result<()> {
        let separator = std::mem::replace(&mut self.between, ",\n");
        let path = path_member(path);
        let time = gmt(mtime_seconds);
        // The server prints the four bytes in the order of its memory.
        let crc = crc32c.map(|crc| hex(&crc.to_le_bytes()));
        let crc =
            crc.map(|crc| format!(", \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"{crc}\""));
        let crc = crc.unwrap_or_default();
        self.put(&format!(
            "{separator}{{ {path}, \"Size\": {size}, \"Last-Modified\": \"{time}\"{crc} }}"
        ))
    }

    /// Ends the manifest with the WAL ranges that recovery needs, newest first.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be written.
    pub fn finish(mut self, wal: &[WalRange]) -> Result<Finished> {
        let ranges: Vec<String> = wal.iter().map(WalRange::line).collect();
        self.put(&format!(
            "\n],\n\"WAL-Ranges\": [\n{}\n],\n",
            ranges.join(",\n")
        ))?;
        let digest = hex(&self.digest.finalize_reset());
        self.put(&format!("\"Manifest-Checksum\": \"{digest}\"}}\n"))?;
        let file = self.file.into_inner().map_err(|e| failed(e.into_error()))?;
        Ok(Finished {
            file,
            bytes: self.bytes,
        })
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.digest.update(text);
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes()).map_err(failed)
    }
}

impl WalRange {
    fn line(&self) -> String {
        let Self {
            timeline,
            start_lsn,
            end_lsn,
        } = *self;
        let start = lsn(start_lsn);
        let end = lsn(end_lsn);
        format!(
            "{{ \"Timeline\": {timeline}, \"Start-LSN\": \"{start}\", \"End-LSN\": \"{end}\" }}"
        )
    }
}

/// Returns a WAL location as the server prints it: `0/2000028`.
pub fn lsn(place: u64) -> String {
    format!("{:X}/{:X}", place >> 32, place & 0xffff_ffff)
}

/// Returns the member with the path. JSON cannot hold bytes, so a path that is not UTF-8 is in
/// hexadecimal.
fn path_member(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        // The escapes are those of the server: short ones where JSON has them, otherwise \u00 and
        // two digits.
        Ok(text) => format!("\"Path\": {}", serde_json::Value::from(text)),
        Err(_) => format!("\"Encoded-Path\": \"{}\"", hex(path)),
    }
}

/// Returns a time as the server prints it. Times after the year 9999 are printed as the last time
/// of that year: tools do not compare them.
fn gmt(seconds: i64) -> String {
    let last = if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_second(seconds)
        .unwrap_or(last)
        .strftime("%Y-%m-%d %H:%M:%S GMT")
        .to_string()
}

fn failed(error: std::io::Error) -> Error {
    Error::io(
        "could not keep the manifest for PostgreSQL in a temporary file",
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn text(finished: &Finished) -> String {
        let mut bytes = vec![0; finished.bytes as usize];
        finished.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(finished.file.metadata().unwrap().len(), finished.bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn version_two_names_the_cluster_and_ranges_are_listed_as_given() {
        let mut manifest = Manifest::new(17, u64::MAX).unwrap();
        manifest
            .add(b"a\"\n\x01\\\x7f\xc3\xa4", 3, 0, Some(0x0102_0304))
            .unwrap();
        manifest
            .add(b"b\xff", u64::MAX, 1_700_000_000, Some(0))
            .unwrap();
        let range = |timeline, start_lsn, end_lsn| WalRange {
            timeline,
            start_lsn,
            end_lsn,
        };
        let text = text(
            &manifest
                .finish(&[
                    range(2, 0x1_0000_00aa, 0x1_0000_00ff),
                    range(1, 0x28, 0x1_0000_00aa),
                ])
                .unwrap(),
        );
        let (body, tail) = text.split_at(text.find("\"Manifest-Checksum\"").unwrap());
        assert_eq!(
            body,
            "{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\
             \"System-Identifier\": 18446744073709551615,\n\
             \"Files\": [\n\
             { \"Path\": \"a\\\"\\n\\u0001\\\\\u{7f}ä\", \"Size\": 3, \"Last-Modified\": \"1970-01-01 00:00:00 GMT\", \
             \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"04030201\" },\n\
             { \"Encoded-Path\": \"62ff\", \"Size\": 18446744073709551615, \"Last-Modified\": \"2023-11-14 22:13:20 GMT\", \
             \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"00000000\" }\n\
             ],\n\
             \"WAL-Ranges\": [\n\
             { \"Timeline\": 2, \"Start-LSN\": \"1/AA\", \"End-LSN\": \"1/FF\" },\n\
             { \"Timeline\": 1, \"Start-LSN\": \"0/28\", \"End-LSN\": \"1/AA\" }\n\
             ],\n"
        );
        assert_eq!(
            tail,
            format!(
                "\"Manifest-Checksum\": \"{}\"}}\n",
                hex(&Sha256::digest(body))
            )
        );
    }

    #[test]
    fn version_one_does_not_name_the_cluster_and_may_be_empty() {
        let text = text(&Manifest::new(16, 1).unwrap().finish(&[]).unwrap());
        assert!(
            text.starts_with(
                "{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [\n],\n\"WAL-Ranges\": [\n\n],\n"
            )
        );
    }

    #[test]
    fn times_beyond_the_calendar_are_printed() {
        assert_eq!(gmt(-1), "1969-12-31 23:59:59 GMT");
        assert!(gmt(i64::MAX).starts_with("9999-12-30") && !gmt(i64::MIN).is_empty());
    }
}
