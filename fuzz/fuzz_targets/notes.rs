//! Any bytes are read as an intent, as the file of a repository, and as any other small document, without harm and within a budget of
//! memory; with a seal that fits.
#![no_main]

use fullbore_format::{
    intent::Intent,
    layout::{Repository, is_of_future},
    seal::open_sealed,
};
use fullbore_fuzz::budget::{CountedMemory, within_budget};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

#[global_allocator]
static MEMORY: CountedMemory = CountedMemory;

/// As the annotations of a backup.
#[derive(serde::Deserialize)]
struct Notes {
    #[allow(dead_code)]
    tags: Option<BTreeMap<String, String>>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut sealed = bytes.to_vec();
    sealed.extend(format!("\n\"blake3\": \"{}\"\n}}\n", blake3::hash(bytes).to_hex()).into_bytes());
    let len = sealed.len();
    if let Ok(intent) = within_budget(len, || open_sealed::<Intent>(&sealed, "the intent")) {
        let _ = is_of_future(&intent.id, jiff::Timestamp::UNIX_EPOCH);
    }
    let _ = within_budget(len, || {
        open_sealed::<Repository>(&sealed, "the repository").is_ok()
    });
    let _ = within_budget(len, || open_sealed::<Notes>(&sealed, "the notes").is_ok());
    let _ = within_budget(len, || {
        open_sealed::<serde_json::Value>(&sealed, "the document").is_ok()
    });
});
