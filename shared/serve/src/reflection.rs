//! Server reflection, v1 and v1alpha, over Berth's descriptors, the error details and health (toolbox trap 4).

use tonic::service::RoutesBuilder;

/// Services every server has.
const STANDARD: [&str; 3] =
    ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Adds both reflection services; `services` are the full names they list, beside health and reflection.
///
/// # Errors
/// When a descriptor set does not decode (a build fault).
pub fn add<'a>(
    routes: &mut RoutesBuilder,
    services: impl IntoIterator<Item = &'a str>,
) -> Result<(), tonic_reflection::server::Error> {
    let listed: Vec<&str> = services.into_iter().chain(STANDARD).collect();
    let builder = || {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(berth_rpc::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET);
        for name in &listed {
            builder = builder.with_service_name(*name);
        }
        builder
    };
    routes.add_service(builder().build_v1()?);
    routes.add_service(builder().build_v1alpha()?);
    Ok(())
}
