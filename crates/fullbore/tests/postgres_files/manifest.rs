//! PostgreSQL's own manifest, made again from a backup of `pg_basebackup`, is the same to the last byte.

use super::server::Cluster;
use fullbore_format::{digest::crc32c, name::parse_hex};
use fullbore_postgres::manifest::{Manifest, WalRange};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::Path,
};

fn lsn(text: &str) -> u64 {
    let (high, low) = text.split_once('/').unwrap();
    u64::from_str_radix(high, 16).unwrap() << 32 | u64::from_str_radix(low, 16).unwrap()
}

fn path_of(file: &Value) -> Vec<u8> {
    match file["Path"].as_str() {
        Some(path) => path.as_bytes().to_vec(),
        None => parse_hex(file["Encoded-Path"].as_str().unwrap()).unwrap(),
    }
}

/// The manifest of the backup at `copy`, with the files in the order of `original`.
pub(super) fn again(major: u32, copy: &Path, original: &[u8]) -> Vec<u8> {
    let original: Value = serde_json::from_slice(original).unwrap();
    let mut manifest =
        Manifest::new(major, original["System-Identifier"].as_u64().unwrap_or(0)).unwrap();
    for file in original["Files"].as_array().unwrap() {
        let path = path_of(file);
        let on_disk = copy.join(OsStr::from_bytes(&path));
        let (bytes, meta) = (fs::read(&on_disk).unwrap(), fs::metadata(&on_disk).unwrap());
        // pg_basebackup does not keep times: they are taken from the original.
        let time: jiff::civil::DateTime = file["Last-Modified"]
            .as_str()
            .unwrap()
            .trim_end_matches(" GMT")
            .parse()
            .unwrap();
        let seconds = time
            .to_zoned(jiff::tz::TimeZone::UTC)
            .unwrap()
            .timestamp()
            .as_second();
        manifest
            .add(&path, meta.len(), seconds, Some(crc32c(&bytes)))
            .unwrap();
    }
    let range = |range: &Value| WalRange {
        timeline: range["Timeline"].as_u64().unwrap() as u32,
        start_lsn: lsn(range["Start-LSN"].as_str().unwrap()),
        end_lsn: lsn(range["End-LSN"].as_str().unwrap()),
    };
    let ranges: Vec<WalRange> = original["WAL-Ranges"]
        .as_array()
        .unwrap()
        .iter()
        .map(range)
        .collect();
    let finished = manifest.finish(&ranges).unwrap();
    let mut bytes = vec![0; finished.bytes as usize];
    finished.file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn the_manifest_of_a_backup_is_the_one_the_server_writes() {
    let Some(cluster) = Cluster::new(&[]) else {
        return;
    };
    let data = cluster.path("data");
    for name in [&b"odd \"name\"\\\t\x7f\xc3\xa4\x01"[..], b"no\xfftext"] {
        fs::write(Path::new(&data).join(OsStr::from_bytes(name)), name).unwrap();
    }
    let copy = cluster.start("data").unwrap().basebackup("copy");
    let original = fs::read(format!("{copy}/backup_manifest")).unwrap();
    assert!(original.windows(14).any(|part| part == b"\"Encoded-Path\""));
    let ours = again(cluster.major, Path::new(&copy), &original);
    assert_eq!(
        String::from_utf8(ours).unwrap(),
        String::from_utf8(original).unwrap()
    );
}
