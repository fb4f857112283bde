//! dump, its restore, and mbuffer on the simulated drive.

use crate::runs::{self, fullbore, has, is_root, noise, or_skip, shell, temp};
use std::{fs, path::Path};

/// A disk image with a file system, as a block device.
struct LoopDevice(String);

impl LoopDevice {
    /// `None` if this machine has no loop devices.
    fn new(image: &Path, tree: &Path) -> Option<Self> {
        let line =
            "truncate -s 24M \"$1\" && mkfs.ext4 -qF -d \"$2\" \"$1\" && losetup -f --show \"$1\"";
        let ran = shell(line, args![image, tree]);
        (ran.code == 0).then(|| Self(ran.out.trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        shell("losetup -d \"$1\"", args![self.0]);
    }
}

#[test]
fn dump_writes_to_a_simulated_drive_and_its_restore_reads_it() {
    let is_there = is_root() && has("dump") && has("restore") && has("mkfs.ext4");
    if !or_skip(is_there, "not root, or no dump") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    for number in 0..40 {
        runs::write(
            tree.join(format!("d{}/f{number}", number % 3)),
            noise(number, 30_000),
        );
    }
    let device = LoopDevice::new(&dir.path().join("image"), &tree);
    if !or_skip(device.is_some(), "there are no loop devices") {
        return;
    }
    let device = device.unwrap();
    let cartridge = dir.path().join("cartridge");
    let script = dir.path().join("rsh");
    let line = format!(
        "#!/bin/sh\nexec {} simtape {} --rmt -q --set clock=virtual \"$@\"\n",
        runs::FULLBORE,
        cartridge.display()
    );
    runs::write(&script, line);
    runs::set_mode(&script, 0o755);
    for (records, most_writes) in [("10", 1000), ("64", 100), ("1024", 10)] {
        let _ = fs::remove_file(&cartridge);
        let line = "RSH=\"$1\" dump -0 -b \"$2\" -f localhost:st0 \"$3\"";
        shell(line, args![script, records, device.0]).ends_with(0);
        let told = fullbore(args!["simtape", cartridge, "--json"])
            .ends_with(0)
            .json();
        let count = |name: &str| told[0]["counters"][name].as_u64().unwrap();
        assert!(
            count("written_bytes") > 1_200_000 && count("marks") == 1,
            "{}",
            told[0]
        );
        assert!(
            count("writes") < most_writes && count("starts") == 1,
            "{}",
            told[0]
        );
    }
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let line = "cd \"$2\" && RSH=\"$1\" restore -r -b 1024 -f localhost:st0 && rm -rf restoresymtable lost+found";
    shell(line, args![script, out]).ends_with(0);
    let content = |dir: &Path| -> Vec<_> {
        let paths = super::volumes::paths(dir);
        paths
            .iter()
            .map(|path| (path.clone(), fs::read(dir.join(path)).unwrap()))
            .collect()
    };
    assert!(content(&tree) == content(&out));
}

#[test]
fn mbuffer_fills_the_ring_of_a_simulated_drive() {
    if !or_skip(has("mbuffer"), "there is no mbuffer") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    runs::write(tree.join("a"), noise(1, 3_000_000));
    let (cartridge, stream) = (dir.path().join("cartridge"), dir.path().join("stream"));
    let line = "set -o pipefail; \"$1\" backup \"$2\" --to - -q | tee \"$4\" | mbuffer -q -m 4M -P 80 | \
                \"$1\" simtape \"$3\" --stdin -q --set clock=virtual";
    shell(line, args![runs::FULLBORE, tree, cartridge, stream]).ends_with(0);
    let told = fullbore(args!["simtape", cartridge, "--json"])
        .ends_with(0)
        .json();
    let count = |name: &str| told[0]["counters"][name].as_u64().unwrap();
    assert_eq!((count("starts"), count("marks")), (1, 1), "{}", told[0]);
    assert_eq!(count("written_bytes"), fs::metadata(stream).unwrap().len());
}
