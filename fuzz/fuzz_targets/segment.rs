//! Any bytes are read as service frames, locator, label and seek table without harm.
#![no_main]

use fullbore_format::{
    segment::{Label, Locator, Service, skippable_len},
    segment_reader::segment_in_memory,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = (
        Service::parse(bytes),
        Locator::parse(bytes),
        skippable_len(bytes),
        Label::parse(bytes),
    );
    let segment = segment_in_memory(bytes);
    let _ = (
        segment.locator(),
        segment.begins_with_label(),
        segment.service(0, |_| true),
        segment.lz4_frame(0),
    );
    if let Ok(Some(frames)) = segment.frames() {
        assert!(frames.len() * 8 <= bytes.len());
    }
});
