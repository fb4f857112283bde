//! Standard input as a file of a backup.

use super::*;

#[test]
fn standard_input_is_stored_as_a_file_whatever_the_codec() {
    let dir = temp();
    for len in [1, 65_535, 65_536, 65_537, 3_000_000] {
        let input = noise(len as u64, len);
        for (n, (codec, file)) in [
            ("zstd", "x.tar.zst"),
            ("lz4", "x.tar.lz4"),
            ("gzip:1", "x.tar.gz"),
            ("none", "x.tar"),
        ]
        .into_iter()
        .enumerate()
        {
            let file = dir.path().join(file);
            let _ = fs::remove_file(&file);
            let repository = dir.path().join(format!("r{n} {len}"));
            let is_repository = |codec: &str| !codec.starts_with("gzip");
            for target in [file]
                .into_iter()
                .chain(is_repository(codec).then_some(repository))
            {
                let options = args![
                    "--compress",
                    codec,
                    "--frame-size",
                    "64K",
                    "--to",
                    target,
                    "--quiet"
                ];
                let ran = Ran::from(fed(
                    args!["backup", "--stdin-name", "dump.sql"]
                        .into_iter()
                        .chain(options),
                    &input,
                ));
                assert_eq!(ran.code, 0, "{codec} {len}: {}", ran.err);
                assert_stream(&target, dir.path(), &input);
            }
        }
        let ran = fed(
            args![
                "backup",
                "--stdin-name",
                "dump.sql",
                "--to",
                "-",
                "--quiet",
                "--frame-size",
                "64K"
            ],
            &input,
        );
        assert!(ran.status.success());
        let target = dir.path().join("y.tar.zst");
        fs::write(&target, &ran.stdout).unwrap();
        assert_stream(&target, dir.path(), &input);
        let tar = shell(
            "zstd -dc \"$1\" | tar -xO dump.sql | sha256sum",
            args![target],
        )
        .ends_with(0)
        .out;
        fs::write(dir.path().join("input"), &input).unwrap();
        assert_eq!(
            tar,
            shell("sha256sum < \"$1\"", args![dir.path().join("input")]).out
        );
    }
}

fn assert_stream(from: &Path, dir: &Path, input: &[u8]) {
    let back = dir.join("back");
    fullbore(args!["restore", from, "--to", back, "--quiet"]).ends_with(0);
    assert!(
        fs::read(back.join("dump.sql")).unwrap() == input,
        "{from:?}"
    );
    fullbore(args!["verify", from, "--data"]).ends_with(0);
    fs::remove_dir_all(back).unwrap();
}

#[test]
fn standard_input_is_stored_however_many_readers_there_are() {
    let dir = temp();
    let input = noise(1, 5_000_000);
    for (n, readers) in ["1", "2", "16"].into_iter().enumerate() {
        let target = dir.path().join(n.to_string());
        let options = args![
            "--frame-size",
            "64K",
            "--workers",
            "16",
            "--readers",
            readers,
            "--quiet",
            "--to",
            target
        ];
        let ran = fed(
            args!["backup", "--stdin-name", "s"]
                .into_iter()
                .chain(options),
            &input,
        );
        assert!(ran.status.success());
        fullbore(args![
            "restore",
            target,
            "--to",
            dir.path().join("b"),
            "--quiet"
        ])
        .ends_with(0);
        assert!(fs::read(dir.path().join("b/s")).unwrap() == input);
        fs::remove_dir_all(dir.path().join("b")).unwrap();
    }
}
