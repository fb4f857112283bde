//! Any bytes are read as service frames, locator, label and seek table without harm.
#![no_main]

use fullbore_format::segment::{
    Label, Locator, Service, parse_seek_table, seek_table_len, skippable_len,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = (
        Service::parse(bytes),
        Locator::parse(bytes),
        skippable_len(bytes),
        Label::parse(bytes),
    );
    let _ = seek_table_len(bytes, bytes.len() as u64);
    if let Some(sizes) = parse_seek_table(bytes) {
        assert!(sizes.len() * 8 <= bytes.len());
    }
});
