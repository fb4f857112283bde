//! Makes the client of a store from an address, the settings and the environment, by the chains that each provider's own tools follow.

use super::{
    address::{CloudAddress, CloudService},
    credentials::with_profile,
    endpoint::{checked_endpoint, is_address},
    environment::{CloudEnvironment, EMULATOR, check_region},
    profile::AwsProfile,
    settings::{CloudSettings, ObjectRetention, UploadChecksum},
    transport::{CloudMeter, MeteredConnector},
};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector},
    gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder, GoogleConfigKey},
    multipart::MultipartStore,
};
use std::{fs, iter, sync::Arc, time::Duration};

/// The client of one bucket.
pub(super) struct Store {
    /// Everything but what makes an object.
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Parts of uploads.
    pub(super) parts: Arc<dyn MultipartStore>,
    /// Puts; with the headers that ask for a retention.
    pub(super) puts: Arc<dyn ObjectStore>,
    /// Begins of uploads; with the headers that ask for a retention.
    pub(super) begins: Arc<dyn MultipartStore>,
    /// Asks for uploads that were not finished.
    pub(super) unfinished: UnfinishedAccess,
}

/// How the uploads that were not finished can be asked for.
pub(super) enum UnfinishedAccess {
    /// By a signed URL.
    S3(Arc<AmazonS3>, HttpClient),
    /// By the URL of the bucket and a token.
    Gcs(String, GcpCredentialProvider, HttpClient),
    /// Not at all: the store drops them after a week.
    Forgotten,
}

impl Store {
    pub(super) fn open(
        address: &CloudAddress,
        settings: &CloudSettings,
        environment: &CloudEnvironment,
        meter: &Arc<CloudMeter>,
    ) -> Result<Self> {
        settings.check()?;
        environment.check()?;
        let connector = MeteredConnector(meter.clone());
        let of_profile = settings.profile.as_deref();
        let environment = &of_profile.map_or_else(
            || environment.clone(),
            |profile| environment.with_profile(profile),
        );
        match address.service {
            CloudService::S3 => open_s3(address, settings, environment, connector),
            CloudService::Gcs => open_gcs(address, settings, environment, connector),
            CloudService::Azure => open_azure(address, settings, environment, connector),
        }
    }
}

/// Returns the options of the connections of one bucket.
fn client_options(settings: &CloudSettings, endpoint: Option<&str>) -> Result<ClientOptions> {
    let is_plain = endpoint.is_some_and(|url| url.starts_with("http://"));
    // A request is given up by the time that its bytes may take (`CloudClient`), not by one time for all.
    let mut options = ClientOptions::new()
        .with_allow_http(is_plain)
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(10))
        .with_pool_idle_timeout(Duration::from_secs(20));
    if let Some(path) = &settings.ca_file {
        let message = || format!("could not read the certificates of {path:?}");
        let text = fs::read(path).map_err(|error| Error::io(message(), error))?;
        let bad = |why: &'static str| Error::new(ErrorKind::Usage, message()).because(why);
        let certificates = Certificate::from_pem_bundle(&text)
            .map_err(|_| bad("it is no file of certificates in PEM format"))?;
        if certificates.is_empty() {
            return Err(bad("it has no certificate"));
        }
        for certificate in certificates {
            options = options.with_root_certificate(certificate);
        }
    }
    Ok(options)
}

/// Returns the setting with which the crate itself tries nothing again: it would use the same signature, and not look at what the store asks for.
fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::from_secs(60),
    }
}

/// Errors of a builder name settings and files, never values of secrets.
fn refused(address: &CloudAddress, error: &object_store::Error) -> Error {
    let message = format!("cannot use {:?} as a storage", address.to_string());
    let outer: &(dyn std::error::Error + 'static) = error;
    let chain = iter::successors(Some(outer), |error| error.source());
    let why = chain.last().unwrap_or(outer).to_string();
    // A system without them, such as an empty container.
    let hint = if why.contains("CA certificates") {
        "install the package ca-certificates, or name certificates with --storage ca-file=FILE"
    } else {
        "check the settings and credentials of the store; az:// needs AZURE_STORAGE_ACCOUNT"
    };
    Error::new(ErrorKind::Usage, message)
        .because(why)
        .hint(hint)
}

fn s3_builder(
    address: &CloudAddress,
    settings: &CloudSettings,
    environment: &CloudEnvironment,
) -> Result<(AmazonS3Builder, ClientOptions)> {
    let profile = AwsProfile::of(environment)?;
    let profile_name = profile.name();
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.below("AWS_") {
        if let (Ok(key), false) = (
            name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>(),
            value.is_empty(),
        ) {
            builder = builder.with_config(key, value);
        }
    }
    let endpoint = settings.endpoint.as_deref();
    let endpoint = endpoint.or_else(|| environment.get("AWS_ENDPOINT_URL_S3"));
    let endpoint = endpoint.or_else(|| environment.get("AWS_ENDPOINT_URL"));
    let endpoint = endpoint.or_else(|| profile.get("endpoint_url"));
    let region = settings.region.as_deref();
    let region = region.or_else(|| environment.get("AWS_REGION"));
    let region = region.or_else(|| environment.get("AWS_DEFAULT_REGION"));
    let region = region
        .or_else(|| profile.get("region"))
        .unwrap_or("us-east-1");
    let of_profile = |key: &'static str| {
        move |why: &'static str| {
            let name = quoted(profile_name.as_bytes());
            let message = format!("cannot use {key} of the AWS profile {name}");
            Error::new(ErrorKind::Usage, message).because(why)
        }
    };
    check_region(region).map_err(of_profile("region"))?;
    if let Some(endpoint) = endpoint {
        checked_endpoint(endpoint).map_err(of_profile("endpoint_url"))?;
    }
    builder = with_profile(builder, environment, &profile)?;
    // A name with dots matches no certificate of a host.
    let is_path_style = settings
        .is_path_style
        .unwrap_or(endpoint.is_some() || address.bucket.contains('.'));
    builder = builder
        .with_bucket_name(&address.bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(!is_path_style);
    if let Some(endpoint) = endpoint {
        if !is_path_style && is_address(endpoint) {
            return Err(no_name());
        }
        builder = builder.with_config(
            AmazonS3ConfigKey::S3Endpoint,
            s3_endpoint(endpoint, &address.bucket, is_path_style),
        );
    }
    builder = match settings.checksum {
        UploadChecksum::Crc64 => builder.with_checksum_algorithm(Checksum::CRC64NVME),
        UploadChecksum::Sha256 => builder.with_checksum_algorithm(Checksum::SHA256),
        UploadChecksum::Off => builder,
    };
    // With TLS and a checksum the signature needs no digest of the content: a second pass over all bytes.
    let is_plain = endpoint.is_some_and(|url| url.starts_with("http://"));
    builder = builder.with_unsigned_payload(!is_plain && settings.checksum != UploadChecksum::Off);
    builder = builder
        .with_disable_bulk_delete(settings.has_no_batch_delete)
        .with_retry(no_retries());
    if let Some(encryption) = &settings.encryption {
        builder = builder.with_config(s3_key("aws_server_side_encryption"), &encryption.method);
        if let Some(id) = &encryption.key_id {
            builder = builder.with_config(s3_key("aws_sse_kms_key_id"), id);
        }
    }
    Ok((builder, client_options(settings, endpoint)?))
}

fn no_name() -> Error {
    let message = "cannot use path-style=no with an endpoint that is an IP address";
    Error::new(ErrorKind::Usage, message)
        .hint("name the host of the store, or leave path-style out")
}

fn s3_key(name: &str) -> AmazonS3ConfigKey {
    name.parse().unwrap_or(AmazonS3ConfigKey::Checksum) // both names are the crate's own
}

/// Returns the URL that stands for the bucket where it is a part of the host.
fn s3_endpoint(endpoint: &str, bucket: &str, is_path_style: bool) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !is_path_style && !host.starts_with(&format!("{bucket}.")) => {
            format!("{scheme}://{bucket}.{host}")
        }
        _ => endpoint.to_owned(),
    }
}

fn open_s3(
    address: &CloudAddress,
    settings: &CloudSettings,
    environment: &CloudEnvironment,
    connector: MeteredConnector,
) -> Result<Store> {
    let (builder, options) = s3_builder(address, settings, environment)?;
    let client = connector
        .connect(&options)
        .map_err(|error| refused(address, &error))?;
    let builder = builder.with_http_connector(connector);
    let build = |options: ClientOptions| {
        let store = builder.clone().with_client_options(options).build();
        store
            .map(Arc::new)
            .map_err(|error| refused(address, &error))
    };
    let plain = build(options.clone())?;
    // Headers of retention belong to requests that make objects, and to no others.
    let keeping = match settings.retention {
        Some(retention) => build(options.with_default_headers(retention_headers(retention)?))?,
        None => plain.clone(),
    };
    Ok(Store {
        objects: plain.clone(),
        parts: plain.clone(),
        puts: keeping.clone(),
        begins: keeping,
        unfinished: UnfinishedAccess::S3(plain, client),
    })
}

/// Returns the headers of an object that the store shall keep. They are signed as all others are.
fn retention_headers(retention: ObjectRetention) -> Result<HeaderMap> {
    let hours = jiff::Span::new().hours(i64::from(retention.days) * 24);
    let until = jiff::Timestamp::now().checked_add(hours);
    let until = until.map_err(|error| {
        Error::new(ErrorKind::Usage, "cannot keep objects for so long").because(error)
    })?;
    let until = until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mode = if retention.is_compliance {
        "COMPLIANCE"
    } else {
        "GOVERNANCE"
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-amz-object-lock-mode", HeaderValue::from_static(mode));
    let until = HeaderValue::from_str(&until);
    let until =
        until.map_err(|error| Error::new(ErrorKind::Bug, "cannot write a time").because(error))?;
    headers.insert("x-amz-object-lock-retain-until-date", until);
    Ok(headers)
}

/// Settings that only S3's protocol has.
fn only_s3(address: &CloudAddress, settings: &CloudSettings) -> Result<()> {
    let foreign = [
        ("encryption", settings.encryption.is_some()),
        (
            "retention-mode and retention-days",
            settings.retention.is_some(),
        ),
        ("path-style", settings.is_path_style.is_some()),
        ("profile", settings.profile.is_some()),
    ];
    match foreign.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => {
            let message = format!("cannot use {key} with {:?}", address.to_string());
            Err(Error::new(ErrorKind::Usage, message)
                .hint("set it for the bucket with the tools of the provider"))
        }
        None => Ok(()),
    }
}

fn open_gcs(
    address: &CloudAddress,
    settings: &CloudSettings,
    environment: &CloudEnvironment,
    connector: MeteredConnector,
) -> Result<Store> {
    only_s3(address, settings)?;
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in environment.below("GOOGLE_") {
        if let (Ok(key), false) = (
            name.to_ascii_lowercase().parse::<GoogleConfigKey>(),
            value.is_empty(),
        ) {
            builder = builder.with_config(key, value);
        }
    }
    // The crate reads no variable of this name by itself when it is configured by key.
    if let Some(path) = environment.get("SERVICE_ACCOUNT") {
        builder = builder.with_service_account_path(path);
    }
    // An emulator prints its address without a scheme.
    let emulator = environment
        .get(EMULATOR)
        .map(|host| match host.contains("://") {
            true => host.to_owned(),
            false => format!("http://{host}"),
        });
    let endpoint = settings.endpoint.as_deref().or(emulator.as_deref());
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let options = client_options(settings, endpoint)?;
    let client = connector
        .connect(&options)
        .map_err(|error| refused(address, &error))?;
    let builder = builder
        .with_bucket_name(&address.bucket)
        .with_retry(no_retries())
        .with_client_options(options)
        .with_http_connector(connector);
    let store = Arc::new(builder.build().map_err(|error| refused(address, &error))?);
    let base = endpoint
        .unwrap_or("https://storage.googleapis.com")
        .trim_end_matches('/');
    let bucket = format!("{base}/{}", address.bucket);
    Ok(Store {
        objects: store.clone(),
        parts: store.clone(),
        puts: store.clone(),
        begins: store.clone(),
        unfinished: UnfinishedAccess::Gcs(bucket, store.credentials().clone(), client),
    })
}

fn open_azure(
    address: &CloudAddress,
    settings: &CloudSettings,
    environment: &CloudEnvironment,
    connector: MeteredConnector,
) -> Result<Store> {
    only_s3(address, settings)?;
    let mut builder = MicrosoftAzureBuilder::new();
    let identity = ["MSI_ENDPOINT", "IDENTITY_ENDPOINT"]
        .map(|name| environment.below(name))
        .into_iter()
        .flatten();
    for (name, value) in environment.below("AZURE_").chain(identity) {
        if let (Ok(key), false) = (
            name.to_ascii_lowercase().parse::<AzureConfigKey>(),
            value.is_empty(),
        ) {
            builder = builder.with_config(key, value);
        }
    }
    // The names that Azure's own command line has.
    for (name, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        if let Some(value) = environment.get(name) {
            builder = builder.with_config(key, value);
        }
    }
    let endpoint = settings
        .endpoint
        .as_deref()
        .or_else(|| environment.get("AZURE_ENDPOINT"));
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let builder = builder
        .with_container_name(&address.bucket)
        .with_retry(no_retries())
        .with_client_options(client_options(settings, endpoint)?)
        .with_http_connector(connector);
    let store = Arc::new(builder.build().map_err(|error| refused(address, &error))?);
    Ok(Store {
        objects: store.clone(),
        parts: store.clone(),
        puts: store.clone(),
        begins: store,
        unfinished: UnfinishedAccess::Forgotten,
    })
}
