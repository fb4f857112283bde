//! A command that uses two stores, which know different credentials.

use super::{StoreRepository, runs, stores};
use runs::{sample, temp};

#[test]
fn a_backup_is_copied_to_a_store_of_another_account() {
    let (near, dir) = (StoreRepository::s3(), temp());
    let tree = dir.path().join("tree");
    sample(&tree);
    let id = near.back_up(&tree);
    let mut far = StoreRepository::s3();
    let endpoint = format!("http://127.0.0.1:{}", stores::other_s3_server().port);
    let credentials = stores::write_other_profile(dir.path());
    far.set("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap());
    let setting = |pair: &str| format!("--storage={},{pair}", far.address);
    let copy = args!["copy", near.named(&id), far.address, "--no-encryption"];
    let at_endpoint = copy
        .iter()
        .cloned()
        .chain([setting(&format!("endpoint={endpoint}")).into()]);
    // The keys of the environment are those of the first store.
    far.run(at_endpoint.clone()).ends_with(1);
    far.run(at_endpoint.chain([setting("profile=offsite").into()]))
        .ends_with(0);
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", stores::OTHER_KEY),
        ("AWS_SECRET_ACCESS_KEY", stores::OTHER_SECRET),
        ("AWS_ENDPOINT_URL", &endpoint),
    ] {
        far.set(name, value);
    }
    assert_eq!(far.listed(), std::slice::from_ref(&id));
    far.assert_restores(&tree, &id);
}
