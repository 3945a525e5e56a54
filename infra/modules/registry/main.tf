# Five repositories, five names: a repository's format is no part of its name.

variable "name" {
  type = string
}

variable "region" {
  type = string
}

variable "project" {
  description = "Of Airflow, which installs the wheel."
  type        = string
}

variable "cluster_project" {
  description = "Of the nodes, which pull the images."
  type        = string
}

variable "docker_hub" {
  type = object({
    username = string
    secret   = string
  })
}

variable "kms_key" {
  type = string
}

locals {
  images = "${var.region}-docker.pkg.dev/${var.cluster_project}"
  # As in plugins/nightshift/settings.py; a test compares them.
  version    = "0.3.0"
  openai     = "v0.33.0"
  openai_cpu = "v0.31.0"
  tpu        = "v0.27.0"
}

resource "google_artifact_registry_repository" "images" {
  project       = var.cluster_project
  location      = var.region
  repository_id = var.name
  format        = "DOCKER"
  description   = "Images of the driver and of streams"
  kms_key_name  = var.kms_key
}

# A copy of what is pulled: no limits of Docker Hub at night, and image streaming, which works from Artifact Registry only.
resource "google_artifact_registry_repository" "docker_hub" {
  project       = var.cluster_project
  location      = var.region
  repository_id = "${var.name}-docker-hub"
  format        = "DOCKER"
  mode          = "REMOTE_REPOSITORY"
  description   = "Docker Hub, for vLLM's images"
  kms_key_name  = var.kms_key

  remote_repository_config {
    docker_repository {
      public_repository = "DOCKER_HUB"
    }
    dynamic "upstream_credentials" {
      for_each = var.docker_hub == null ? [] : [var.docker_hub]
      content {
        username_password_credentials {
          username                = upstream_credentials.value.username
          password_secret_version = upstream_credentials.value.secret
        }
      }
    }
  }
}

resource "google_artifact_registry_repository" "wheels" {
  project       = var.project
  location      = var.region
  repository_id = "${var.name}-python"
  format        = "PYTHON"
  description   = "The wheel"
  kms_key_name  = var.kms_key
}

resource "google_artifact_registry_repository" "pypi" {
  project       = var.project
  location      = var.region
  repository_id = "${var.name}-python-pypi"
  format        = "PYTHON"
  mode          = "REMOTE_REPOSITORY"
  description   = "PyPI"
  kms_key_name  = var.kms_key

  remote_repository_config {
    python_repository {
      public_repository = "PYPI"
    }
  }
}

# pip reads this one alone. PyPI has another package of our name, and pip chooses between two indexes by version, not by order.
resource "google_artifact_registry_repository" "packages" {
  project       = var.project
  location      = var.region
  repository_id = "${var.name}-python-all"
  format        = "PYTHON"
  mode          = "VIRTUAL_REPOSITORY"
  description   = "The wheel first, then PyPI"
  kms_key_name  = var.kms_key

  virtual_repository_config {
    upstream_policies {
      id         = "own"
      repository = google_artifact_registry_repository.wheels.id
      priority   = 100
    }
    upstream_policies {
      id         = "pypi"
      repository = google_artifact_registry_repository.pypi.id
      priority   = 10
    }
  }
}

output "images" {
  description = "What nodes pull from."
  value = {
    own        = google_artifact_registry_repository.images.id
    docker_hub = google_artifact_registry_repository.docker_hub.id
  }
}

output "packages" {
  description = "What Airflow installs from: the virtual repository and what it asks."
  value = {
    wheels = google_artifact_registry_repository.wheels.id
    pypi   = google_artifact_registry_repository.pypi.id
    all    = google_artifact_registry_repository.packages.id
  }
}

output "index" {
  value = "https://${var.region}-python.pkg.dev/${var.project}/${google_artifact_registry_repository.packages.repository_id}/simple/"
}

output "uploads" {
  value = "https://${var.region}-python.pkg.dev/${var.project}/${google_artifact_registry_repository.wheels.repository_id}/"
}

output "driver_image" {
  value = "${local.images}/${google_artifact_registry_repository.images.repository_id}/driver:${local.version}"
}

output "stream_image" {
  value = "${local.images}/${google_artifact_registry_repository.images.repository_id}/stream:${local.version}"
}

output "server_image" {
  value = "${local.images}/${google_artifact_registry_repository.docker_hub.repository_id}/vllm/vllm-openai:${local.openai}"
}

output "cpu_server_image" {
  value = "${local.images}/${google_artifact_registry_repository.docker_hub.repository_id}/vllm/vllm-openai-cpu:${local.openai_cpu}"
}

output "tpu_server_image" {
  value = "${local.images}/${google_artifact_registry_repository.docker_hub.repository_id}/vllm/vllm-tpu:${local.tpu}"
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    artifact_registry_repository_images     = google_artifact_registry_repository.images
    artifact_registry_repository_docker_hub = google_artifact_registry_repository.docker_hub
    artifact_registry_repository_wheels     = google_artifact_registry_repository.wheels
    artifact_registry_repository_pypi       = google_artifact_registry_repository.pypi
    artifact_registry_repository_packages   = google_artifact_registry_repository.packages
  }
}
