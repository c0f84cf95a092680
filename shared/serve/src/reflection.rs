//! Server reflection, v1 and v1alpha, over Berth's descriptors, the error details and health (toolbox trap 4).

use tonic::service::RoutesBuilder;

/// Adds both reflection services.
///
/// # Errors
/// When a descriptor set does not decode (a build fault).
pub fn add(routes: &mut RoutesBuilder) -> Result<(), tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(berth_rpc::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
    };
    routes.add_service(builder().build_v1()?);
    routes.add_service(builder().build_v1alpha()?);
    Ok(())
}
