//! Stock `age` opens what fullbore sealed, and fullbore what stock `age` sealed.

use super::suite::pattern;
use fullbore_crypt::{
    KeyOptions, OpeningReader, Passphrase, PositionalBytes, SealedFile, SealingWriter,
    UserIdentity, UserRecipient, is_sealed,
};
use fullbore_format::{error::ErrorKind, layout::KEYS};
use fullbore_storage::{
    LocalObjects, Objects, PutIf, SealedObjects,
    keys::{RepositoryKey, encrypt_repository, open_repository},
};
use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

/// Runs a program in `dir` to its end; it must succeed.
fn run(dir: &Path, program: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
    output.stdout
}

/// Runs a command line on a terminal where a passphrase is typed as often as it is asked for.
fn run_on_terminal(dir: &Path, line: &str, passphrase: &str, times: usize) {
    let mut child = Command::new("script")
        .args(["-qec", line, "/dev/null"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..times {
        // age throws away what is typed before it asks.
        thread::sleep(Duration::from_secs(2));
        writeln!(stdin, "{passphrase}").unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{line}: {said}");
}

/// A key of age, a key of ssh, and their public halves.
struct Keys {
    dir: tempfile::TempDir,
    age: UserRecipient,
    ssh: UserRecipient,
}

impl Keys {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "age-keygen", &["-o", "me.key"]);
        run(
            dir.path(),
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", "ssh.key"],
        );
        let age = String::from_utf8(run(dir.path(), "age-keygen", &["-y", "me.key"])).unwrap();
        let ssh = fs::read_to_string(dir.path().join("ssh.key.pub")).unwrap();
        Self {
            age: UserRecipient::parse(&age).unwrap(),
            ssh: UserRecipient::parse(&ssh).unwrap(),
            dir,
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn options(&self, file: &str) -> KeyOptions {
        KeyOptions {
            key_files: vec![self.path().join(file)],
            ..KeyOptions::default()
        }
    }

    fn identities(&self, file: &str) -> Vec<UserIdentity> {
        self.options(file).identities().unwrap()
    }
}

fn opened(key: RepositoryKey) -> Arc<fullbore_crypt::KeyRing> {
    match key {
        RepositoryKey::Opened(ring) => Arc::new(*ring),
        other => panic!("{other:?}"),
    }
}

/// A repository that is sealed for `recipient`, with a segment, and the bytes of that.
fn repository(dir: &Path, recipient: &UserRecipient) -> Vec<u8> {
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&dir.join("repository")));
    let ring = encrypt_repository(&*local, "me", recipient).unwrap();
    let sealed = SealedObjects::new(local, Arc::new(ring));
    let bytes = pattern(300_000, 3);
    let mut upload = sealed.create("backups/b/s01-000001.tar.zst").unwrap();
    upload.append(&bytes).unwrap();
    upload.finish().unwrap();
    sealed
        .put("backups/b/manifest", b"", &PutIf::Always)
        .unwrap();
    bytes
}

/// Opens segment and manifest with stock age and the key of the repository.
fn open_with_repository_key(dir: &Path, bytes: &[u8]) {
    let segment = "repository/backups/b/s01-000001.tar.zst";
    assert!(run(dir, "age", &["-d", "-i", "repository.key", segment]) == bytes);
    let manifest = "repository/backups/b/manifest";
    assert_eq!(
        run(dir, "age", &["-d", "-i", "repository.key", manifest]),
        b""
    );
}

#[test]
fn stock_age_opens_a_repository_with_a_key_of_age_or_of_ssh() {
    for (file, is_ssh) in [("me.key", false), ("ssh.key", true)] {
        let keys = Keys::new();
        let recipient = if is_ssh { &keys.ssh } else { &keys.age };
        let bytes = repository(keys.path(), recipient);
        let key_file = format!("repository/{KEYS}/me.age");
        run(
            keys.path(),
            "age",
            &["-d", "-i", file, "-o", "repository.key", &key_file],
        );
        open_with_repository_key(keys.path(), &bytes);
        let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&keys.path().join("repository")));
        let ring = opened(open_repository(&*local, &keys.options(file)).unwrap());
        let sealed = SealedObjects::new(local, ring);
        assert!(
            sealed
                .get("backups/b/s01-000001.tar.zst")
                .unwrap()
                .unwrap()
                .0
                == bytes
        );
    }
}

#[test]
fn stock_age_opens_a_repository_with_a_passphrase() {
    let dir = tempfile::tempdir().unwrap();
    let passphrase = Passphrase::new("correct horse");
    let bytes = repository(dir.path(), &passphrase.clone().into());
    let line = format!("age -d -o repository.key repository/{KEYS}/me.age");
    run_on_terminal(dir.path(), &line, "correct horse", 1);
    open_with_repository_key(dir.path(), &bytes);
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&dir.path().join("repository")));
    let options = KeyOptions {
        passphrase: Some(passphrase),
        ..KeyOptions::default()
    };
    let ring = opened(open_repository(&*local, &options).unwrap());
    assert!(
        SealedObjects::new(local, ring)
            .get("backups/b/s01-000001.tar.zst")
            .unwrap()
            .unwrap()
            .0
            == bytes
    );
}

#[test]
fn a_key_of_ssh_that_has_a_passphrase_is_used_with_it() {
    let keys = Keys::new();
    let bytes = repository(keys.path(), &keys.ssh);
    run(
        keys.path(),
        "ssh-keygen",
        &["-q", "-p", "-P", "", "-N", "of the key", "-f", "ssh.key"],
    );
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&keys.path().join("repository")));
    let error = open_repository(&*local, &keys.options("ssh.key")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(error.line().contains("passphrase"), "{}", error.line());
    let options_with = |passphrase| KeyOptions {
        passphrase: Some(Passphrase::new(passphrase)),
        ..keys.options("ssh.key")
    };
    assert_eq!(
        open_repository(&*local, &options_with("wrong"))
            .unwrap_err()
            .kind,
        ErrorKind::Permission
    );
    let ring = opened(open_repository(&*local, &options_with("of the key")).unwrap());
    assert!(
        SealedObjects::new(local, ring)
            .get("backups/b/s01-000001.tar.zst")
            .unwrap()
            .unwrap()
            .0
            == bytes
    );
}

/// Seals `bytes` as an archive in pieces.
fn sealed_archive(bytes: &[u8], recipients: &[UserRecipient]) -> Vec<u8> {
    let mut writer = SealingWriter::new(Vec::new(), recipients).unwrap();
    bytes
        .chunks(77_777)
        .for_each(|piece| writer.write_all(piece).unwrap());
    assert_eq!(writer.plain_bytes(), bytes.len() as u64);
    writer.finish().unwrap()
}

const LENGTHS: [usize; 7] = [0, 1, 65_535, 65_536, 65_537, 4 * 65_536, 3_000_000];

#[test]
fn stock_age_opens_a_sealed_archive_of_any_length_with_each_of_its_keys() {
    let keys = Keys::new();
    for length in LENGTHS {
        let bytes = pattern(length, 9);
        let archive = sealed_archive(&bytes, &[keys.age.clone(), keys.ssh.clone()]);
        assert!(is_sealed(&archive));
        fs::write(keys.path().join("a.tar.zst.age"), &archive).unwrap();
        for file in ["me.key", "ssh.key"] {
            assert!(
                run(keys.path(), "age", &["-d", "-i", file, "a.tar.zst.age"]) == bytes,
                "{length} {file}"
            );
        }
    }
}

#[test]
fn an_archive_that_stock_age_sealed_is_read_at_any_position_and_as_a_stream() {
    let keys = Keys::new();
    for length in LENGTHS {
        let bytes = pattern(length, 9);
        fs::write(keys.path().join("plain"), &bytes).unwrap();
        let age = keys.age.to_string();
        let ssh = keys.ssh.to_string();
        run(
            keys.path(),
            "age",
            &["-r", &age, "-r", &ssh, "-o", "a.age", "plain"],
        );
        for file in ["me.key", "ssh.key"] {
            let identities = keys.identities(file);
            let stored = fs::File::open(keys.path().join("a.age")).unwrap();
            let stored_bytes = stored.metadata().unwrap().len();
            let opened = SealedFile::open(stored, stored_bytes, &identities, "a.age").unwrap();
            assert_eq!(opened.plain_bytes(), length as u64);
            let mut out = Vec::new();
            for (offset, len) in [
                (0, length),
                (length / 2, length - length / 2),
                (length, 0),
                (length / 3, length / 5),
            ] {
                opened.read_at(offset as u64, len, &mut out).unwrap();
                assert!(
                    out == bytes[offset..offset + len],
                    "{length} {file} {offset} {len}"
                );
            }
            let beyond = opened.read_at(1, length, &mut out).unwrap_err();
            assert_eq!(beyond.kind, ErrorKind::Corrupt);
            let stored = fs::File::open(keys.path().join("a.age")).unwrap();
            let mut plain = Vec::new();
            let mut reader = OpeningReader::new(stored, &identities, "a.age").unwrap();
            reader.read_to_end(&mut plain).unwrap();
            assert!(plain == bytes, "{length} {file}");
        }
    }
}

#[test]
fn an_archive_for_a_passphrase_goes_to_stock_age_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = pattern(100_000, 2);
    let passphrase = Passphrase::new("a b");
    fs::write(
        dir.path().join("ours.age"),
        sealed_archive(&bytes, &[passphrase.into()]),
    )
    .unwrap();
    run_on_terminal(dir.path(), "age -d -o plain ours.age", "a b", 1);
    assert!(fs::read(dir.path().join("plain")).unwrap() == bytes);
    run_on_terminal(dir.path(), "age -p -o theirs.age plain", "a b", 2);
    let theirs = fs::read(dir.path().join("theirs.age")).unwrap();
    let len = theirs.len() as u64;
    let mut out = Vec::new();
    let opened = SealedFile::open(
        theirs.clone(),
        len,
        &[UserIdentity::of_passphrase("a b")],
        "it",
    )
    .unwrap();
    opened.read_at(70_000, 30_000, &mut out).unwrap();
    assert!(out == bytes[70_000..]);
    let wrong =
        SealedFile::open(theirs, len, &[UserIdentity::of_passphrase("a c")], "it").unwrap_err();
    assert_eq!(wrong.kind, ErrorKind::Permission, "{}", wrong.line());
}

#[test]
fn every_change_of_an_archive_is_found_by_positions_and_as_a_stream() {
    let keys = Keys::new();
    let identities = keys.identities("me.key");
    let bytes = pattern(2 * 65_536 + 50, 4);
    let stored = sealed_archive(&bytes, std::slice::from_ref(&keys.age));
    let payload = stored.len() - (bytes.len() + 3 * 16);
    let read_all = |stored: &[u8]| -> Option<Vec<u8>> {
        let opened =
            SealedFile::open(stored.to_vec(), stored.len() as u64, &identities, "it").ok()?;
        let mut out = Vec::new();
        let len = opened.plain_bytes() as usize;
        opened.read_at(0, len, &mut out).ok()?;
        Some(out)
    };
    let stream_all = |mut stored: &[u8]| -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut reader = OpeningReader::new(&mut stored, &identities, "it").ok()?;
        reader.read_to_end(&mut out).ok()?;
        Some(out)
    };
    assert!(read_all(&stored).unwrap() == bytes && stream_all(&stored).unwrap() == bytes);
    for offset in (0..payload + 20)
        .chain((payload..stored.len()).step_by(997))
        .chain(stored.len() - 20..stored.len())
    {
        let mut changed = stored.clone();
        changed[offset] ^= 4;
        assert!(read_all(&changed).is_none(), "byte {offset}");
        assert!(stream_all(&changed).is_none(), "byte {offset}");
    }
    let chunk = 65_536 + 16;
    for len in (0..payload + 20).chain(
        [chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1].map(|distance| payload + distance),
    ) {
        assert!(read_all(&stored[..len]).is_none(), "{len} bytes");
        assert!(stream_all(&stored[..len]).is_none(), "{len} bytes");
    }
    let more = [&stored[..], b"x"].concat();
    assert!(read_all(&more).is_none() && stream_all(&more).is_none());
    let error = SealedFile::open(
        stored.clone(),
        stored.len() as u64,
        &keys.identities("ssh.key"),
        "it",
    )
    .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(error.hint.unwrap().contains("--key"));
    let mut out = Vec::new();
    assert!(PositionalBytes::read_at(&stored, stored.len() as u64, 1, &mut out).is_err());
}
