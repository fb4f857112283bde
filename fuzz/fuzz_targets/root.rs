//! Any bytes are read as a root, clear or sealed, without harm and within a budget of memory; with a seal that fits: a fuzzer does not
//! find one.
#![no_main]

use fullbore_format::{
    root::{FREE_ROOT_BYTES, Root, RootGate, RootOwner},
    root_parts::{RootParts, SealedRoot},
    seal::seal,
};
use fullbore_fuzz::budget::{CountedMemory, within_budget};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: CountedMemory = CountedMemory;

fuzz_target!(|bytes: &[u8]| {
    let _ = Root::open(bytes, "the root");
    let mut sealed = bytes.to_vec();
    sealed.extend(format!("\n\"blake3\": \"{}\"\n}}\n", blake3::hash(bytes).to_hex()).into_bytes());
    let len = sealed.len();
    if let Ok(root) = within_budget(len, || Root::open(&sealed, "the root")) {
        assert_eq!(Root::open(&seal(&root).unwrap(), "the root").unwrap(), root);
    }
    if let Ok(Some(head)) = within_budget(len, || SealedRoot::open(&sealed, "the root")) {
        let _ = within_budget(len, || head.join(bytes, "the root"));
    }
    let _ = within_budget(len, || RootParts::cut(&sealed));
    for owner in [RootOwner::Host("web1"), RootOwner::Sealed] {
        let gate = RootGate {
            id: "20261121T054501Z-k3f9qz",
            owner,
            max_bytes: FREE_ROOT_BYTES,
        };
        let _ = within_budget(len, || gate.check(&sealed).is_ok());
    }
});
