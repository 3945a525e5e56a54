output "deployment" {
  description = "The overlay's deployment.yaml: the names of this deployment, and an account for each job."
  value = join("---\n", concat([yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "deployment", annotations = { "config.kubernetes.io/local-config" = "true" } }
    data = {
      project    = local.cluster_project
      node       = module.accounts.nodes.email
      airflow    = module.accounts.airflow.email
      airflowId  = module.accounts.airflow.unique_id
      imageCache = "${var.name}-images"
      # Of a reservation that is made here; the component reservations names it to ComputeClasses.
      reservation = var.name
    }
    })], [
    for job in concat(var.jobs, keys(var.streams)) : yamlencode({
      apiVersion                   = "v1"
      kind                         = "ServiceAccount"
      metadata                     = { name = "nightshift-${job}", namespace = "nightshift" }
      automountServiceAccountToken = false
    })
  ]))
}

output "build" {
  description = "Arguments of `gcloud builds submit`, which makes the images and the wheel."
  value = join(" ", [
    "--project=${var.project_id}",
    "--config=infra/cloudbuild.yaml",
    "--service-account=${module.builds.account}",
    "--substitutions=_DRIVER_IMAGE=${module.registry.driver_image},_STREAM_IMAGE=${module.registry.stream_image},_WHEELS=${module.registry.uploads}",
  ])
}

output "shell" {
  description = "For a shell on your own machine: the settings of `nightshift`, and the cluster for kubectl."
  value = join("\n", concat(
    [for name, value in module.composer.settings : "export ${name}='${value}'"],
    # Without a password: a stream logs in with a token of its account.
    [for each in module.alloydb : "export NIGHTSHIFT_SINK_URL='postgresql://${replace(each.user, "@", "%40")}@${each.address}/postgres'"],
    ["gcloud container clusters get-credentials ${var.name} --project=${local.cluster_project} --location=${var.region} --dns-endpoint"],
  ))
}

output "airflow" {
  description = "Airflow's web page."
  value       = module.composer.web
}

output "database" {
  description = "Address and user of AlloyDB; null without it."
  value       = one([for each in module.alloydb : { address = each.address, user = each.user }])
}
