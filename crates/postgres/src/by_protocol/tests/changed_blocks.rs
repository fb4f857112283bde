//! Members with changed blocks that no server sends.

use super::*;

/// A member with changed blocks: its numbers, the numbers of its blocks, and so many pages of content.
fn patch(numbers: [u32; 3], blocks: &[u32], pages: usize) -> Vec<u8> {
    let all = numbers.iter().chain(blocks);
    let mut content: Vec<u8> = all.flat_map(|number| number.to_le_bytes()).collect();
    if !blocks.is_empty() {
        content.resize(content.len().next_multiple_of(8192), 0);
    }
    content.resize(content.len() + pages * 8192, 7);
    file("base/5/INCREMENTAL.16384", &content)
}

const PATCH_MAGIC: u32 = 0xd3ae_1f0d;

/// Receives a backup with a member that has changed blocks.
fn receive_patch(member: Vec<u8>) -> Result<Received> {
    let mut all = members();
    all.insert(6, directory("base/5"));
    all.insert(7, member);
    let script = Script {
        is_incremental: true,
        ..script_of(18, &all)
    };
    script.receive()
}

#[test]
fn changed_blocks_that_cannot_be_are_refused() {
    for (why, member) in [
        ("no magic", patch([1, 1, 9], &[3], 1)),
        (
            "fewer blocks than said",
            patch([PATCH_MAGIC, 2, 9], &[3, 4], 1),
        ),
        ("more blocks than said", patch([PATCH_MAGIC, 1, 9], &[3], 2)),
        ("a block twice", patch([PATCH_MAGIC, 2, 9], &[3, 3], 2)),
        ("blocks in no order", patch([PATCH_MAGIC, 2, 9], &[4, 3], 2)),
        (
            "behind the end of a file",
            patch([PATCH_MAGIC, 1, 9], &[131_072], 1),
        ),
        ("too long a file", patch([PATCH_MAGIC, 0, u32::MAX], &[], 0)),
        (
            "too many blocks",
            patch([PATCH_MAGIC, u32::MAX, 9], &[3], 1),
        ),
        ("too short", file("base/5/INCREMENTAL.16384", &[0; 11])),
    ] {
        let error = receive_patch(member).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{why}: {error:?}");
    }
    // A full backup has no such members.
    let mut all = members();
    all.insert(6, patch([1, 1, 9], &[3], 1));
    assert!(
        script_of(18, &all).receive().is_ok(),
        "it is a file as any other"
    );
}

#[test]
fn changed_blocks_of_a_file_without_base_are_refused() {
    let error = {
        let all = [&members()[..6], &[patch([PATCH_MAGIC, 1, 9], &[3], 1)]].concat();
        let script = Script {
            is_incremental: true,
            ..script_of(18, &all)
        };
        script.first_narrowed("base/5/16384")
    };
    assert!(
        error.line().contains("was not backed up before"),
        "{error:?}"
    );
}
