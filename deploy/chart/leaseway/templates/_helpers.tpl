{{/*
Refuse values without what the chart needs: null, and after `helm upgrade --reuse-values`, which keeps the values of the chart before,
what is new in this one.
*/}}
{{- define "leaseway.checkValues" -}}
{{- range $path, $names := include "leaseway.needed" . | fromYaml }}
{{- $value := $.Values }}
{{- $section := "" }}
{{- range $name := splitList "." $path | compact }}
{{- $section = trimPrefix "." (printf "%s.%s" $section $name) }}
{{- $value = get $value $name }}
{{- if not (kindIs "map" $value) }}{{ include "leaseway.refuseMissing" $section }}{{ end }}
{{- end }}
{{- range $name := $names }}
{{- if kindIs "invalid" (index $value $name) }}{{ include "leaseway.refuseMissing" (trimPrefix "." (printf "%s.%s" $section $name)) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "leaseway.refuseMissing" -}}
{{- fail (printf "%s has no value: leave it out instead of null; `helm upgrade --reset-then-reuse-values` adds what an older chart did not have" .) }}
{{- end }}

{{/* The values that are not empty in values.yaml, by sections, but `replicas`: null leaves them to others. */}}
{{- define "leaseway.needed" -}}
"": [ipFamily]
image: [repository, pullPolicy]
podSecurityContext: []
key: [secretKey, sealKey]
controlPlane: [leaseDuration, port, metricsPort, expectWorkers, topologySpread, podDisruptionBudget]
controlPlane.resources: [enabled]
controlPlane.config: []
controlPlane.store: [secretKey]
controlPlane.store.volume: [enabled, size]
workers: []
workerDefaults: [images, port, metricsPort, capacity, terminationGracePeriodSeconds, maxSurge, maxUnavailable, topologySpread, podDisruptionBudget]
workerDefaults.audit: [policy, space]
workerDefaults.autoscaling: [kind, minReplicas, maxReplicas, leasesPerWorker, callsPerWorker, prometheus]
front: [enabled, inWorkers, port, tenant, topologySpread, podDisruptionBudget]
front.service: [type, sessionAffinity]
tls: []
tls.certManager: [enabled, duration, renewBefore]
tls.certManager.issuerRef: [kind]
networkPolicy: [enabled]
networkPolicy.clients: []
networkPolicy.monitoring: []
serviceMonitor: [enabled, interval, adapterRules]
prometheusRule: [enabled]
serviceAccount: [create]
telemetry: []
telemetry.otlpHeaders: [secretKey]
tests: [enabled]
{{- end }}

{{/* A name of at most so many characters: (list NAME LIMIT). One that is cut ends with a digest, so that no two become the same. */}}
{{- define "leaseway.cut" -}}
{{- $name := index . 0 -}}
{{- $limit := index . 1 -}}
{{- if gt (len $name) $limit -}}
{{- printf "%s-%s" ($name | trunc (int (sub $limit 9)) | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{- define "leaseway.name" -}}
{{- include "leaseway.cut" (list (default .Chart.Name .Values.nameOverride) 40) -}}
{{- end }}

{{- define "leaseway.fullname" -}}
{{- $name := include "leaseway.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full = include "leaseway.cut" (list (default $full .Values.fullnameOverride) 40) -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $full) -}}
{{- fail (printf "%s, from the names of release and chart, can't begin the name of a Service: set fullnameOverride to a name of a-z, 0-9 and '-' that begins with a letter" $full) -}}
{{- end -}}
{{- $full -}}
{{- end }}

{{/* The Deployment of a pool (root, pool). Of longer names a pod's has only the beginning. */}}
{{- define "leaseway.workerName" -}}
{{- include "leaseway.cut" (list (printf "%s-worker-%s" (include "leaseway.fullname" .root) .pool) 57) -}}
{{- end }}

{{- define "leaseway.selector" -}}
app.kubernetes.io/name: {{ include "leaseway.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "leaseway.labels" -}}
{{ include "leaseway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "leaseway.image" -}}
{{ include "leaseway.imageOf" (dict "root" . "tag" .Chart.AppVersion) }}
{{- end }}

{{/* The image with the clients of PostgreSQL and of object stores. A tag or digest of your own is used as it is. */}}
{{- define "leaseway.storesImage" -}}
{{ include "leaseway.imageOf" (dict "root" . "tag" (printf "%s-stores" .Chart.AppVersion)) }}
{{- end }}

{{/* The image, by default with this tag. A digest may stand in the repository or in the tag. */}}
{{- define "leaseway.imageOf" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default "" -}}
{{- if contains "@" $image.repository -}}
{{- if $tag }}{{ fail "image.repository has a digest and image.tag is set: choose one" }}{{ end -}}
{{ $image.repository }}
{{- else if hasPrefix "sha256:" $tag -}}
{{ $image.repository }}@{{ $tag }}
{{- else -}}
{{ $image.repository }}:{{ $tag | default .tag }}
{{- end -}}
{{- end }}

{{/* The address on which the processes of a pod listen. */}}
{{- define "leaseway.anyAddress" -}}
{{- ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") -}}
{{- end }}

{{- define "leaseway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-control-plane" (include "leaseway.fullname" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "leaseway.keySecret" -}}
{{- .Values.key.existingSecret | default (printf "%s-key" (include "leaseway.fullname" .)) -}}
{{- end }}

{{- define "leaseway.keyEnv" -}}
- name: LEASEWAY_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "leaseway.keySecret" . | quote }}
      key: {{ .Values.key.secretKey | quote }}
{{- include "leaseway.tlsEnv" . }}
{{- with .Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.telemetry.otlpProtocol }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.telemetry.otlpHeaders }}
{{- if .existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .secretKey | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The labels of a component's pods: those that select them, and `podLabels`. Not the chart's version, with which each new chart would
replace all pods.
*/}}
{{- define "leaseway.podLabels" -}}
{{- $own := .own.podLabels | default dict -}}
{{- $fixed := omit (.labels | fromYaml) "helm.sh/chart" -}}
{{- range $name, $_ := $own }}
{{- if hasKey $fixed $name }}{{ fail (printf "podLabels has %s, which the chart sets itself: choose another name" $name) }}{{ end }}
{{- end }}
{{- merge $fixed $own | toYaml -}}
{{- end }}

{{/*
The specification of a pod: what all pods have, the component's own values, its `podSpec`.
`podSpec` extends them; so does its container that has the name of the chart's.

root: the chart; own: the component's values; spec: what only this component has.
*/}}
{{- define "leaseway.pod" -}}
{{- $values := .root.Values -}}
{{- $spec := .spec | fromYaml -}}
{{- $spec = merge $spec (dict "automountServiceAccountToken" false) -}}
{{- /* A Service such as `leaseway` would set LEASEWAY_PORT, and servers would see all Services of the namespace. */ -}}
{{- $_ := set $spec "enableServiceLinks" false -}}
{{- $_ := set $spec "securityContext" (include "leaseway.podSecurity" .root | fromYaml) -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.own $field }}{{ $_ := set $spec $field . }}{{ end -}}
{{- end }}
{{- if and .own.topologySpread .selector }}
{{- $_ := set $spec "topologySpreadConstraints" (include "leaseway.spread" (dict "selector" .selector) | fromYamlArray) -}}
{{- end }}
{{- $own := deepCopy (.own.podSpec | default dict) -}}
{{- $with := include "leaseway.container" (dict "root" .root "own" .own "spec" $spec) | fromYaml -}}
{{- $_ := set $spec "volumes" $with.volumes -}}
{{- $container := $with.container -}}
{{- $others := list -}}
{{- range $other := $own.containers }}
{{- if eq $other.name $container.name }}
{{- $container = include "leaseway.extended" (dict "base" $container "with" $other) | fromYaml -}}
{{- else }}
{{- $others = append $others $other -}}
{{- end }}
{{- end }}
{{- $_ := set $spec "containers" (list $container) -}}
{{- include "leaseway.extended" (dict "base" $spec "with" (set $own "containers" $others)) -}}
{{- end }}

{{/*
The container of a pod and the pod's volumes: what all have, what the component has, and the values that its owner adds,
in this order, because a variable may use those before it. The owner's replace those of the same name.

root: the chart; own: the component's values; spec: what only this component has.
*/}}
{{- define "leaseway.container" -}}
{{- $container := index .spec.containers 0 -}}
{{- $mounts := list (dict "name" "tmp" "mountPath" "/tmp") -}}
{{- $volumes := list (merge (dict "name" "tmp") (.own.tmp | default (dict "emptyDir" dict))) -}}
{{- if include "leaseway.tlsOn" .root }}
{{- $secret := dict "secretName" (include "leaseway.tlsSecret" .root) "defaultMode" 288 -}}
{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/run/tls" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" $secret) -}}
{{- end }}
{{- $all := dict "env" (include "leaseway.keyEnv" .root | fromYamlArray) "envFrom" list "volumeMounts" $mounts -}}
{{- range $field, $common := $all }}
{{- $chart := concat $common (get $container $field | default list) -}}
{{- $list := include "leaseway.joined" (dict "field" $field "base" $chart "with" (get $.own $field | default list)) | fromYamlArray -}}
{{- with $list }}{{ $_ := set $container $field . }}{{ end -}}
{{- end }}
{{- $drops := dict "drop" (list "ALL") -}}
{{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" $drops -}}
{{- $_ := set $container "securityContext" $security -}}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy -}}
{{- $_ := set $container "resources" .own.compute -}}
{{- $volumes = concat $volumes (.spec.volumes | default list) -}}
{{- $volumes = include "leaseway.joined" (dict "field" "volumes" "base" $volumes "with" (.own.volumes | default list)) | fromYamlArray -}}
{{- dict "container" $container "volumes" $volumes | toYaml -}}
{{- end }}

{{/*
Two lists of a pod or container as one. Items of the first that the second has, too, are left out: the API refuses two with the
same key, in a server-side apply as of Helm 4.
*/}}
{{- define "leaseway.joined" -}}
{{- $keys := dict "volumeMounts" (list "mountPath") "ports" (list "containerPort" "protocol") "hostAliases" (list "ip") "topologySpreadConstraints" (list "topologyKey" "whenUnsatisfiable") -}}
{{- range list "env" "volumes" "imagePullSecrets" "initContainers" }}{{ $_ := set $keys . (list "name") }}{{ end -}}
{{- $key := get $keys .field | default list -}}
{{- $with := dict -}}
{{- range .with }}{{ if kindIs "map" . }}{{ $_ := set $with (include "leaseway.itemKey" (dict "item" . "key" $key)) true }}{{ end }}{{ end -}}
{{- $list := list -}}
{{- range .base }}
{{- if not (and $key (hasKey $with (include "leaseway.itemKey" (dict "item" . "key" $key)))) }}{{ $list = append $list . }}{{ end }}
{{- end }}
{{- concat $list .with | toYaml -}}
{{- end }}

{{- define "leaseway.itemKey" -}}
{{- range .key }}{{ get $.item . | default (ternary "TCP" "" (eq . "protocol")) | toJson }} {{ end -}}
{{- end }}

{{/* An object with the fields of another one: objects are merged, lists joined, others replaced. */}}
{{- define "leaseway.extended" -}}
{{- $base := .base -}}
{{- $with := .with -}}
{{- range $field, $value := $with }}
{{- if and (kindIs "slice" $value) (kindIs "slice" (get $base $field)) }}
{{- $_ := set $with $field (include "leaseway.joined" (dict "field" $field "base" (get $base $field) "with" $value) | fromYamlArray) -}}
{{- end }}
{{- end }}
{{- mustMergeOverwrite $base $with | toYaml -}}
{{- end }}

{{/* OpenShift assigns users and groups itself, and refuses pods that name others. */}}
{{- define "leaseway.podSecurity" -}}
{{- $context := .Values.podSecurityContext -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- toYaml $context -}}
{{- end }}

{{- define "leaseway.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- $.selector | nindent 6 }}
{{- end }}
{{- end }}

{{/*
A disruption budget of the pods that `labels` select. A pod that is not ready may always be evicted:
it serves nobody, and would hold up the drain of its node.
*/}}
{{- define "leaseway.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name | quote }}
  labels:
    {{- include "leaseway.labels" .root | nindent 4 }}
    {{- .labels | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "leaseway.selector" .root | nindent 6 }}
      {{- .labels | nindent 6 }}
{{- end }}

{{- /* The values of a pool: its own over the defaults. */ -}}
{{- define "leaseway.pool" -}}
{{- mustMergeOverwrite (deepCopy .defaults) (deepCopy (.pool | default dict)) | toYaml -}}
{{- end }}

{{- /* TLS: a kubernetes.io/tls Secret with ca.crt, from cert-manager or your own. */ -}}
{{- define "leaseway.tlsOn" -}}
{{- if or .Values.tls.certManager.enabled .Values.tls.existingSecret }}yes{{ end -}}
{{- end }}

{{- define "leaseway.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "leaseway.fullname" .)) -}}
{{- end }}

{{- define "leaseway.tlsName" -}}
{{- printf "%s-control-plane.%s.svc" (include "leaseway.fullname" .) .Release.Namespace -}}
{{- end }}

{{- define "leaseway.tlsEnv" -}}
{{- if include "leaseway.tlsOn" . }}
{{- range $name, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA" "ca.crt" }}
- { name: LEASEWAY_TLS_{{ $name }}, value: /run/tls/{{ $file }} }
{{- end }}
- { name: LEASEWAY_TLS_NAME, value: {{ include "leaseway.tlsName" . | quote }} }
{{- end }}
{{- end }}

{{- /* The probe of a process; with TLS a TCP probe, because the kubelet's gRPC probes do not support TLS. */ -}}
{{- define "leaseway.probe" -}}
{{- if .root | include "leaseway.tlsOn" -}}
tcpSocket: { port: {{ .port }} }
{{- else -}}
grpc: { port: {{ .port }}{{ with .service }}, service: {{ . }}{{ end }} }
{{- end -}}
{{- end }}

{{/* The options of a front, in a process of its own or in a worker's. */}}
{{- define "leaseway.frontArgs" -}}
{{- $name := printf "%s-front" (include "leaseway.fullname" .) -}}
{{- $front := .Values.front -}}
- {{ printf "--tenant=%s" $front.tenant | quote }}
{{- range concat (list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace)) ($front.hosts | default list) }}
- {{ printf "--allow-host=%s" . | quote }}
{{- end }}
{{- range $front.origins }}
- {{ printf "--allow-origin=%s" . | quote }}
{{- end }}
{{- range $front.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The key of a tenant's file in the ConfigMap, whose keys have fewer characters than names of tenants. */}}
{{- define "leaseway.tenantKey" -}}
{{- $name := ternary . (sha256sum .) (regexMatch "^[-._a-zA-Z0-9]{1,200}$" .) -}}
{{- printf "tenant.%s.yaml" $name | quote -}}
{{- end }}

{{/* How fast the autoscaler of a pool removes workers: each waits for its calls, and its leases end. */}}
{{- define "leaseway.scalingBehavior" -}}
scaleDown:
  stabilizationWindowSeconds: 600
  policies: [{ type: Pods, value: 1, periodSeconds: 120 }]
{{- end }}
